"""Commands of their own: each puts one kind of load on the gateway, and says what it must withstand."""
