"""Multi-hop questions over a local collection of documents.

Read in this order: schema.py (the invented world), collection.py (its documents), questions.py (families), expert.py,
world.py (tasks and verifier), attacks.py.
"""

from longstep.worlds.retrieval.world import RetrievalWorld

__all__ = ["RetrievalWorld"]
