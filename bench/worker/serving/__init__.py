"""Serving a trained model through an OpenAI-compatible server, and asking it from outside.

engines    the servers that there are, and the command that starts each
server     transformers' own server around the model that the generate phase evaluated
merge      an adapter merged into its base, written once
guard      a foreign server that dies with its worker
child      a server as a process: started, watched, stopped
client     streaming requests, so many at a time
proof      are the answers those of the model that was trained?
"""
