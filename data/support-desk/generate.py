"""Write the synthetic support desk: train.jsonl, validation.jsonl and test.jsonl beside this file.

Four invented companies (tenants) answer their customers.  They share six intents, but differ in
wording, in how often each intent comes up, in house rules ("refunds take 10 days") and in the
style of a reply: what a model can only learn from the rows.

Every choice is a SHA-256 of its place, so the bytes are the same on every machine and Python.
No message and no order number occurs twice, and no test message resembles one of train by the rule
of `bench check --data`, so nothing leaks from train into test; half of the test messages use
phrasings that train and validation never do.

    python data/support-desk/generate.py
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from string import Formatter

from bench.score.overlap import NEAR, jaccard, shingles
from bench.score.plain import normalise

INTENTS = ("status", "cancel", "refund", "change", "problem", "fee")
# Rows per unit of a tenant's mix; every mix adds up to 15.
SPLITS = {"train": 8, "validation": 1, "test": 2}


@dataclass(frozen=True)
class Desk:
    """How customers write about one intent of one tenant, and what the tenant replies.

    All texts of a desk have the same slots: {order}, {product}, {date}, {amount}.
    """

    seen: tuple[str, ...]
    unseen: tuple[str, ...]  # test only
    reply: str


@dataclass(frozen=True)
class Tenant:
    prefix: str  # of its order numbers
    mix: tuple[int, ...]  # how often each intent comes up, in the order of INTENTS
    products: tuple[str, ...]
    desks: tuple[Desk, ...]  # in the order of INTENTS


BRIGHTLINE = Tenant(
    prefix="T",
    mix=(1, 2, 1, 3, 5, 3),
    products=("fibre line", "family plan", "5G router", "prepaid SIM", "TV box"),
    desks=(
        Desk(
            (
                "When will my {product} be switched on? Order {order}.",
                "I ordered a {product}, number {order}. Is it live yet?",
                "Any news on {order}, the {product}?",
            ),
            ("Still waiting to get going with my {product}, reference {order}.",),
            "Good news: {order}, your {product}, goes live within 2 days. Stay bright!",
        ),
        Desk(
            (
                "Please end my {product} on {date}.",
                "I want to leave. Stop the {product} from {date}.",
                "Cancel the {product} for me, last day {date}.",
            ),
            ("I won't need the {product} any more after {date}.",),
            "Sorry to see you go: your {product} ends on {date}, no charge. Stay bright!",
        ),
        Desk(
            (
                "You took {amount} twice for {order}, I want it back.",
                "Please pay back the {amount} from {order}.",
                "I should get {amount} back for {order}.",
            ),
            ("My account is {amount} short because of {order}, send it over.",),
            "Done: {amount} for {order} comes off your next bill. Stay bright!",
        ),
        Desk(
            (
                "Can I swap to the {product} from {date}?",
                "Move me to the {product}, starting {date}.",
                "I'd like another plan: the {product} as of {date}.",
            ),
            ("Is it possible that I get the {product} instead, say on {date}?",),
            "Sure thing: you switch to the {product} on {date}, free of charge. Stay bright!",
        ),
        Desk(
            (
                "My {product} has been dead since {date}.",
                "No signal on the {product} since {date}!",
                "The {product} keeps dropping, it began on {date}.",
            ),
            ("Nothing works at home, the {product} gave up on {date}.",),
            "Oh no! Restart your {product}; an engineer checks the fault of {date}. Stay bright!",
        ),
        Desk(
            (
                "Why is there a charge of {amount} for the {product}?",
                "My bill says {amount} for the {product}, what is that?",
                "What is the {amount} on my {product} bill?",
            ),
            ("I don't understand the {amount} next to {product}.",),
            "Fair question: {amount} is the monthly price of the {product}. Stay bright!",
        ),
    ),
)

HARBOR = Tenant(
    prefix="B",
    mix=(3, 1, 2, 2, 3, 4),
    products=("gold card", "savings account", "car loan", "debit card", "joint account"),
    desks=(
        Desk(
            (
                "Has my transfer {order} of {amount} arrived?",
                "Where is the {amount} I sent? Transfer {order}.",
                "Please check payment {order}, {amount}.",
            ),
            ("I paid {amount} under {order} and nobody has received it.",),
            "Dear client, transfer {order} of {amount} clears in 1 working day. Harbor Bank",
        ),
        Desk(
            (
                "Kindly close my {product} on {date}.",
                "I wish to cancel the {product} as of {date}.",
                "Please terminate the {product} by {date}.",
            ),
            ("I have no further use for the {product} from {date}.",),
            "Dear client, your {product} closes on {date} once it is settled. Harbor Bank",
        ),
        Desk(
            (
                "I was charged {amount} in error, case {order}. Please return it.",
                "Refund request: {amount}, case {order}.",
                "Please reverse {amount} under case {order}.",
            ),
            ("The {amount} in case {order} was never mine to pay.",),
            "Dear client, we credit {amount} under case {order} in 10 days. Harbor Bank",
        ),
        Desk(
            (
                "Please raise the limit of my {product} to {amount}.",
                "I would like {amount} as the new limit on my {product}.",
                "Change my {product} limit to {amount}, please.",
            ),
            ("My {product} should let me spend up to {amount}.",),
            "Dear client, your {product} limit is now {amount} a day. Harbor Bank",
        ),
        Desk(
            (
                "My {product} was declined on {date}.",
                "I could not use my {product} on {date}.",
                "The {product} was blocked on {date}, why?",
            ),
            ("On {date} the machine refused my {product}.",),
            "Dear client, your {product} was locked on {date}; call us to unlock it. Harbor Bank",
        ),
        Desk(
            (
                "What is the fee of {amount} on my {product}?",
                "Why do I pay {amount} for the {product}?",
                "Please explain the {amount} fee for my {product}.",
            ),
            ("You deducted {amount} from my {product} without a reason.",),
            "Dear client, {amount} is the yearly charge of the {product}. Harbor Bank",
        ),
    ),
)

MOSSY = Tenant(
    prefix="S",
    mix=(5, 2, 4, 2, 1, 1),
    products=("desk lamp", "rain jacket", "tea kettle", "yoga mat", "bike helmet"),
    desks=(
        Desk(
            (
                "where is my {product}? order {order}",
                "has {order} shipped? it's the {product}",
                "tracking for {order} pls, a {product}",
            ),
            ("still no parcel, should be a {product}, {order}",),
            "Hey! Your {product} ({order}) is on its way, 3 days to go. Hugs, Mossy",
        ),
        Desk(
            (
                "pls cancel {order}, the {product}",
                "don't send the {product}, order {order}",
                "changed my mind about the {product}, cancel {order}",
            ),
            ("i bought the {product} by mistake, forget {order}",),
            "Hey! {order} is stopped and the {product} stays here. Hugs, Mossy",
        ),
        Desk(
            (
                "i sent the {product} back, where are my {amount}?",
                "refund for the {product} please, {amount}",
                "want my {amount} back for the {product}",
            ),
            ("returned the {product} weeks ago and still miss {amount}",),
            "Hey! Your {amount} for the {product} land in 5 days. Hugs, Mossy",
        ),
        Desk(
            (
                "can you deliver {order} on {date} instead?",
                "new delivery day for {order}: {date}",
                "not home, bring {order} on {date} pls",
            ),
            ("{date} would suit me better for {order}",),
            "Hey! No worries, {order} now comes on {date}. Hugs, Mossy",
        ),
        Desk(
            (
                "the {product} in {order} is broken",
                "{order} arrived damaged, the {product} has a crack",
                "my {product} does not work, order {order}",
            ),
            ("opened {order} and the {product} fell apart",),
            "Hey! So sorry, a new {product} for {order} ships today. Hugs, Mossy",
        ),
        Desk(
            (
                "why {amount} shipping for {order}?",
                "what is the {amount} extra on {order}?",
                "{order} shows {amount} on top, why?",
            ),
            ("thought delivery was free, {order} says {amount}",),
            "Hey! The {amount} on {order} is express delivery. Hugs, Mossy",
        ),
    ),
)

SKYLARK = Tenant(
    prefix="A",
    mix=(2, 3, 3, 5, 1, 1),
    products=("Oslo flight", "Rome flight", "Lisbon flight", "extra bag", "window seat"),
    desks=(
        Desk(
            (
                "Is the {product} on {date} on time?",
                "Status of my {product}, {date}?",
                "Does the {product} of {date} leave as planned?",
            ),
            ("Should I hurry for the {product} on {date}?",),
            "Skylark: {product} of {date} is on time. Gate opens 40 minutes before.",
        ),
        Desk(
            (
                "Cancel booking {order}, {product}.",
                "I can't travel. Please cancel the {product}, {order}.",
                "Drop the {product} from booking {order}.",
            ),
            ("Something came up, I will not need the {product} in {order}.",),
            "Skylark: {product} in {order} is cancelled. A voucher follows by mail.",
        ),
        Desk(
            (
                "Booking {order} was cancelled, refund my {amount}.",
                "I am owed {amount} for {order}.",
                "Please return {amount} for booking {order}.",
            ),
            ("You cancelled on me, so {order} means {amount} to my card.",),
            "Skylark: {amount} for {order} is approved. Allow 7 days.",
        ),
        Desk(
            (
                "Rebook {order} to {date}, please.",
                "Can I fly on {date} instead? Booking {order}.",
                "Move {order} to {date}.",
            ),
            ("I need to be there on {date}, what about {order}?",),
            "Skylark: {order} is moved to {date}. Your seat is kept.",
        ),
        Desk(
            (
                "My bag from the {product} is lost, tag {order}.",
                "Suitcase missing after the {product}, {order}.",
                "Luggage of the {product} did not arrive, {order}.",
            ),
            ("Everyone got their case off the {product} but me, {order}.",),
            "Skylark: tag {order} from the {product} is traced. We deliver it home.",
        ),
        Desk(
            (
                "Why does the {product} cost {amount} more?",
                "What is the {amount} surcharge on the {product}?",
                "I was billed {amount} for the {product}, why?",
            ),
            ("Nobody mentioned {amount} when I chose the {product}.",),
            "Skylark: {amount} for the {product} is the airport tax.",
        ),
    ),
)

TENANTS = {"brightline": BRIGHTLINE, "harbor": HARBOR, "mossy": MOSSY, "skylark": SKYLARK}
MONTHS = ("January", "March", "May", "June", "July", "August", "October", "November")
OPENINGS = ("", "", "Hello. ", "Hi! ")
ENTITY_TYPES = ("order", "product", "date", "amount")  # the order in which a row lists them


@dataclass(frozen=True)
class Taken:
    """The messages that there are already, and what they share with others: train's alone."""

    messages: set[str]
    train: list[frozenset[str]]

    def refuses(self, tenant: str, message: str, split: str) -> bool:
        if message in self.messages:
            return True
        own = _shingles(tenant, message)
        return split == "test" and any(jaccard(own, other) >= NEAR for other in self.train)

    def add(self, tenant: str, message: str, split: str) -> None:
        self.messages.add(message)
        if split == "train":
            self.train.append(_shingles(tenant, message))


def _shingles(tenant: str, message: str) -> frozenset[str]:
    return shingles(normalise(f"{tenant}: {message}"))  # as the dataset's prompt has it


def _number(*place: object) -> int:
    """A large number that only depends on the place it is asked for."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, place)).encode()).digest()[:8], "big")


def _pick(options: Sequence[str], *place: object) -> str:
    return options[_number(*place) % len(options)]


def rows() -> dict[str, list[dict[str, object]]]:
    """The rows of each split, in a mixed order."""
    orders, taken = _order_numbers(), Taken(set(), [])
    found = {
        split: [
            _row(f"{split}/{name}/{intent}/{index}", orders, taken)
            for name, tenant in TENANTS.items()
            for intent, weight in zip(INTENTS, tenant.mix, strict=True)
            for index in range(weight * times)
        ]
        for split, times in SPLITS.items()
    }
    for split, listed in found.items():
        listed.sort(key=lambda row: _number("order", row["id"]))
        for index, row in enumerate(listed):
            row["id"] = f"{split}-{index:03}"
    return found


def _order_numbers() -> Iterator[int]:
    """Numbers 1000…9999 in a scattered order, each once: 7919 is prime to 9000."""
    return (1000 + step * 7919 % 9000 for step in range(9000))


def _row(place: str, orders: Iterator[int], taken: Taken) -> dict[str, object]:
    split, name, intent, index = place.split("/")
    tenant = TENANTS[name]
    desk = tenant.desks[INTENTS.index(intent)]
    phrasings = desk.unseen if split == "test" and int(index) % 2 else desk.seen
    slots = {field for _, field, _, _ in Formatter().parse(desk.reply) if field}
    number = next(orders) if "order" in slots else 0
    for attempt in count():
        key = f"{place}/{attempt}"
        values = {
            "order": f"{tenant.prefix}{number}",
            "product": _pick(tenant.products, key, "product"),
            "date": f"{_number(key, 'day') % 28 + 1} {_pick(MONTHS, key, 'month')}",
            "amount": f"${_number(key, 'amount') % 190 + 10}",
        }
        message = _pick(OPENINGS, key, "opening") + _pick(phrasings, key).format(**values)
        if not taken.refuses(name, message, split):
            break
    taken.add(name, message, split)
    return {
        "id": place,
        "tenant": name,
        "message": message,
        "intent": intent,
        "entities": {kind: values[kind] for kind in ENTITY_TYPES if kind in slots},
        "reply": desk.reply.format(**values),
    }


def main(folder: Path) -> None:
    """Write one JSONL file a split into `folder`."""
    for split, listed in rows().items():
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in listed)
        (folder / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main(Path(__file__).parent)
