"""The heart, without I/O: the contract, and each backend's operations. Imports no driver."""
