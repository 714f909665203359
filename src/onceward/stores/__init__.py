"""Databases that keep an inbox; `protocol.py` says what each must offer, `sql/` what each is sent."""
