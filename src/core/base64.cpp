#include "core/base64.hpp"

#include <openssl/evp.h>

namespace glu_ckpt {
namespace {

const unsigned char* unsigned_of(std::string_view bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

}  // namespace

// Readers bound their files to fewer bytes than an int counts.
std::string base64_encode(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4, '\0');  // libcrypto writes a zero byte behind it, as a string has one
  EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()), unsigned_of(bytes), static_cast<int>(bytes.size()));
  return text;
}

std::optional<std::string> base64_decode(std::string_view text) {
  std::string bytes(text.size() / 4 * 3, '\0');
  if (EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()), unsigned_of(text),
                      static_cast<int>(text.size())) < 0)
    return std::nullopt;
  // libcrypto counts padding as bytes, and skips blanks and ends of lines: only what encodes to `text` is its bytes.
  for (std::size_t padding = text.size() - text.find_last_not_of('=') - 1; padding > 0 && !bytes.empty(); --padding)
    bytes.pop_back();
  if (base64_encode(bytes) != text) return std::nullopt;
  return bytes;
}

}  // namespace glu_ckpt
