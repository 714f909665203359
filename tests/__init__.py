"""The test suite: real servers, real crashes, and an exhaustive model of the protocol."""
