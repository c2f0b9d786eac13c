"""SiTU, the gated activation of every MLP and expert.

    situ(g, u, beta, linear_beta) = beta tanh(g / beta) sigmoid(g) * linear_beta tanh(u / linear_beta)

Contract: g and u of one shape, any; computed in fp32 and cast back to g's dtype; |result| <= beta * linear_beta.
Source: Kimi K3 technical report and Moonshot's modeling code (beta 4, linear_beta 25).
"""

from longstep.ops.forms import Op
from longstep.ops.situ import reference

situ = Op("situ", reference.situ)
