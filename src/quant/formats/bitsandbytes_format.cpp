/// bitsandbytes: known by the names of its scales alone, so that its codes are not taken for such as lost theirs.
/// Nothing here decodes or moves them.

#include "quant/formats/quant_format.hpp"

namespace glu_ckpt {

extern const QuantFormat q_bitsandbytes;
constinit const QuantFormat q_bitsandbytes{.name = "bitsandbytes", .foreign_scales = {"absmax", "SCB"}};

}  // namespace glu_ckpt
