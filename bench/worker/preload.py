"""What every phase imports; the process that workers are forked from imports it once."""

import peft
import peft.tuners.lora  # noqa: F401

import bench.worker.generate
import bench.worker.train  # noqa: F401
