"""Choose the next token of each sequence, and say how probable it was.

Contract: logits_BV fp32; temperature_B >= 0 (0 is greedy, ties to the lower id); top_p_B in (0, 1]; uniform_B in [0, 1)
is each sequence's own random number, so that a choice depends on nothing else in the batch. Returns token_B (int64) and
logprob_B (fp32), the log-probability of the chosen token under softmax(logits / temperature) before top-p (under
softmax(logits) where greedy).

Top-p keeps the smallest set of most probable tokens whose sum reaches top_p (Holtzman et al. 2020, section 3.1).
"""

from longstep.ops.sample.reference import sample_ref as sample

__all__ = ["sample"]
