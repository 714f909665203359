"""An exhaustive model of the protocol in `docs/protocol.md`."""
