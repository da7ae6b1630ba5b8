"""The closed list of what a custom loss may do. What each does is in `engine.custom_loss`.

Nothing in it writes into a tensor, draws random numbers or reads anything but its arguments; and of each the
size of the result can be told before it is computed.
"""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# One element from one element of each argument, after broadcasting; `max` and `min` of one tensor give fewer.
ELEMENTWISE = _names(
    "abs acos add asin atan atan2 ceil clamp clamp_max clamp_min clip cos div divide eq erf exp exp2 expm1 "
    "floor floor_divide fmod ge greater greater_equal gt isfinite isinf isnan le lerp less less_equal log "
    "log10 log1p log2 logaddexp logical_and logical_not logical_or logical_xor lt masked_fill max maximum "
    "min minimum mul multiply nan_to_num ne neg negative not_equal pow reciprocal relu remainder round rsqrt "
    "sigmoid sign sin sinh sqrt square sub subtract tan tanh true_divide trunc where xlogy"
)
# As many elements as the largest argument has, or fewer.
SHRINKING = _names(
    "all amax amin any argmax argmin argsort clone count_nonzero cummax cummin cumprod cumsum detach flatten "
    "flip gather log_softmax logcumsumexp logsumexp mean median movedim numel permute prod ravel reshape "
    "roll softmax sort squeeze std sum topk transpose tril triu unsqueeze var"
)
LIKE = _names("full_like ones_like zeros_like")
JOINING = _names("cat concat stack")
PRODUCTS = _names("dot matmul")
RANGES = _names("arange")
EXPANDING = _names("expand repeat")
METHODS_ONLY = _names("bool dim double expand_as float int long size t to type_as view view_as")
FUNCTIONAL = _names(
    "binary_cross_entropy_with_logits elu gelu hardtanh huber_loss kl_div l1_loss leaky_relu log_softmax "
    "logsigmoid mse_loss relu sigmoid silu smooth_l1_loss softmax softplus tanh"
)
# What torch.fx calls those of them that are not written in Python.
NATIVE = {
    "torch._C._nn.gelu": "gelu",
    "torch._C._nn.log_sigmoid": "logsigmoid",
    "torch._C._nn.softplus": "softplus",
}
OPERATORS = _names(
    "abs add and_ eq floordiv ge getitem gt iadd imul invert isub itruediv le lt matmul mod mul ne neg or_ "
    "pos pow sub truediv xor"
)
MATH = _names("ceil exp floor log log2 sqrt")

_BOTH_WAYS = ELEMENTWISE | SHRINKING | PRODUCTS  # torch.exp(x) and x.exp()

# As a traced graph names them.
FUNCTIONS = frozenset(
    {f"torch.{name}" for name in _BOTH_WAYS | LIKE | JOINING | RANGES}
    | {f"torch.nn.functional.{name}" for name in FUNCTIONAL}
    | {f"operator.{name}" for name in OPERATORS}
    | {f"math.{name}" for name in MATH}
    | {"getattr", *NATIVE}
)
METHODS = _BOTH_WAYS | EXPANDING | METHODS_ONLY
ATTRIBUTES = ("shape", "ndim", "dtype", "T")
DTYPES = ("float32", "float64", "int32", "int64", "bool")
SPECIAL_FLOATS = ("inf", "-inf", "nan")
CONSTANT_KINDS = ("ref", "tuple", "dict", "slice", "ellipsis", "float", "dtype")
KEYWORDS = _names(  # tracing writes down defaults too, such as inplace=False
    "_stacklevel alpha approximate axes axis base beta condition correction delta descending dim dim0 "
    "dim1 dims dtype end end_dim eps exponent fill_value index inplace input keepdim largest log_target "
    "mask max max_val min min_val nan negative_slope neginf ord other p pos_weight posinf reduce "
    "reduction rounding_mode shape shifts size size_average sorted source start start_dim target tensors "
    "threshold unbiased value weight"
)
