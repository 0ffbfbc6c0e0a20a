"""A transformer's feed-forward block in one pass over its rows.

from steptime.kernels.feed_forward import Block, feed_forward
y = feed_forward(x, Block(w1, b1, w2, b2), "gelu", p1=0.1, p2=0.1)
"""

from steptime.kernels.feed_forward.op import Activation, Block, available, feed_forward, fits, masks, measure, warm

__all__ = ["Activation", "Block", "available", "feed_forward", "fits", "masks", "measure", "warm"]
