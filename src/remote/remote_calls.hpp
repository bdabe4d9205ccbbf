#pragma once
/// Lets every File and directory of this program be on a server.

#include <string>
#include <string_view>

#include "glu_ckpt/tensor.hpp"

namespace glu_ckpt {

/// Returns true for a path that begins with hf://, s3://, http:// or https://.
bool is_remote(std::string_view path);

/// From then on what is below that address is read over the network, by every File and directory; nothing is written
/// there. Returns the path to open: an address on the hub's own site becomes hf://, an index its directory. Asks no
/// server yet; what an earlier use in this process knew of one is forgotten, unless it is still open. Throws Usage for
/// what is no such address.
std::string use_remote(std::string_view path);

/// Holds what addresses take beside their callers' buffers (heads, bytes read ahead, bytes that wait for the SHA-256)
/// to a quarter of `memory_bytes`, 40 MiB at most. Returns how much that is: 0 where this process uses no address.
i64 reserve_remote_memory(i64 memory_bytes);

}  // namespace glu_ckpt
