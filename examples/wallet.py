"""A service whose state is in DynamoDB: wallets that are paid into, and an account that never goes below zero.

    export WALLET_DATABASE=dynamodb://eu-central-1/onceward WALLET_TABLE=wallets
    onceward migrate examples.wallet:inbox
    onceward run examples.wallet:inbox

The table of wallets is the service's own: its key is the text `id`. What a handler records on `tx` is written together
with the end of its message, or not at all; a payment that meets another one is handled again.
"""

from __future__ import annotations

import os
from typing import Any

from onceward import Inbox, Message, Reject

TABLE = os.environ.get("WALLET_TABLE", "wallets")

inbox = Inbox(os.environ.get("WALLET_DATABASE", "dynamodb://eu-central-1/onceward"), service="wallet")


@inbox.on("money.received", key="wallet")
def pay_in(message: Message, tx: Any) -> None:
    """Add to a wallet, which is there from its first payment on."""
    tx.update(TABLE, {"id": message.data["wallet"]}, "ADD cents :cents", values={":cents": message.data["cents"]})


@inbox.on("money.wanted", key="wallet")
async def pay_out(message: Message, tx: Any) -> None:
    """Take from a wallet what is in it, and order the payout."""
    wallet, cents = message.data["wallet"], message.data["cents"]
    found = await tx.get(TABLE, {"id": wallet})
    if found is None or found["cents"] < cents:
        raise Reject(f"wallet {wallet} has {found['cents'] if found else 0} cents, and {cents} are wanted")
    tx.update(TABLE, {"id": wallet}, "ADD cents :less", "cents >= :cents", values={":less": -cents, ":cents": cents})
    message.send("payout.wanted", {"wallet": wallet, "cents": cents})
