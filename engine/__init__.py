"""The engine of Tickwire: scheduling, paged KV memory, the model. No asyncio, no HTTP, no JSON."""
