#pragma once
/// SHA-256 of a file whose bytes pass in the order that they are asked for.

#include <openssl/evp.h>
#include <sys/uio.h>

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

class PassingHash {
 public:
  PassingHash() = default;
  PassingHash(const PassingHash&) = delete;
  PassingHash& operator=(const PassingHash&) = delete;
  ~PassingHash();

  /// Sets how many early bytes all files together may keep, 32 MiB where nobody says otherwise. One file keeps half of
  /// them at most.
  static void allow_early(i64 bytes);

  /// Bytes that were read at `offset` of a file of `size`. Those that come a little too early are kept until their
  /// turn; where that would take more memory than is allowed, no sum is made. Returns the sum, in hexadecimal, where
  /// these bytes complete it, once; else nothing. Thread safe.
  std::string take(std::span<const iovec> pieces, i64 offset, i64 size);

 private:
  struct Free {
    void operator()(EVP_MD_CTX* state) const { EVP_MD_CTX_free(state); }
  };

  void update(const char* bytes, i64 count);
  /// Keeps bytes until their turn. Returns false where too many would be kept then.
  bool keep_early(const char* bytes, i64 count, i64 offset);
  void drop_early();

  std::mutex mutex_;
  std::unique_ptr<EVP_MD_CTX, Free> state_;
  /// The first byte that is not in the sum.
  i64 at_ = 0;
  /// Bytes that follow later, by where they begin.
  std::map<i64, std::string> early_;
  i64 early_bytes_ = 0;
  bool is_over_ = false;
};

}  // namespace glu_ckpt
