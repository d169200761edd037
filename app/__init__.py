"""The asyncio side of Tickwire: sessions, HTTP, WebSocket, wire formats, the command line."""

__version__ = "0.1.0"
