#pragma once
/// Base64 as RFC 4648 section 4 has it.

#include <optional>
#include <string>
#include <string_view>

namespace glu_ckpt {

std::string base64_encode(std::string_view bytes);
/// Returns nothing where the text is not base64 with its padding.
std::optional<std::string> base64_decode(std::string_view text);

}  // namespace glu_ckpt
