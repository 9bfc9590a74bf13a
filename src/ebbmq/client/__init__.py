"""The broker's verbs over HTTP, blocking and awaitable."""
