"""comap's environments in other people's stacks, and theirs here; each stack is loaded when it is used.

- `comap.integrations.agentgym`: an HTTP server with ``/create``, ``/reset`` and ``/step``
- `comap.integrations.agentgym_client`: its client
- `comap.integrations.sessions`: what servers let clients make, and the episodes that are open
"""

from __future__ import annotations

from .sessions import Offered, Session, Sessions

__all__ = ["Offered", "Session", "Sessions"]
