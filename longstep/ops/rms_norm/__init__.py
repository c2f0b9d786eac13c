"""RMSNorm over the last axis, and the form with an output gate that KDA ends in.

    rms_norm(x, w, eps)             = w * cast(x / sqrt(mean(x^2) + eps))
    gated_rms_norm(x, gate, w, eps) = cast(x / sqrt(mean(x^2) + eps) * w * sigmoid(gate))

Contract: x [..., D], w [D]; statistics in fp32. `rms_norm` returns x's dtype, rounded before the product with w (as
the released code does); `gated_rms_norm` takes the fp32 output of KDA and returns the gate's dtype. The gate is a
sigmoid, not SiLU.
"""

from longstep.ops.forms import Op
from longstep.ops.rms_norm import reference

rms_norm = Op("rms_norm", reference.rms_norm)
gated_rms_norm = Op("gated_rms_norm", reference.gated_rms_norm)
