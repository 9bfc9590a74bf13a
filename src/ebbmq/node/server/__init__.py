"""The broker on the network: HTTP, access, signals. Nothing embedded imports it."""
