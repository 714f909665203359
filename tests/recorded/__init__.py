"""What the crash tests of stores whose `tx` records share: a service that is killed, and what must hold afterwards."""
