"""comap's environments in other people's stacks, and theirs here; each stack is loaded when it is used.

- `comap.integrations.agentgym`: an HTTP server for AgentGym's clients and plain ones
- `comap.integrations.trl`: what TRL's ``environment_factory`` takes
- `comap.integrations.mcp`: tools of the Model Context Protocol
- `comap.integrations.recording`: the episodes that clients play, recorded in a folder
- `comap.integrations.harbor`: task folders of Harbor
- `comap.integrations.openenv`: classes, a server and a client of OpenEnv
- `comap.integrations.verl_agent`: ``make_envs`` for verl-agent's trainer
- `comap.integrations.adapter`: facts for text environments of others, TextArena's games among them
- `comap.integrations.browsergym`: BrowserGym's observations and actions, both ways, as text
- `comap.integrations.hub`: trajectories and models on the Hugging Face Hub
- `comap.integrations.published`: trajectories that others published, as ours
- ``comap_envs``: a package of its own in this folder, which verifiers finds as a taskset
- `comap.integrations.sessions`: what servers let clients make, and the episodes that are open
"""

from __future__ import annotations

from .sessions import Offered, Session, Sessions

__all__ = ["Offered", "Session", "Sessions"]
