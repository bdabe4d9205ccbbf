#pragma once
/// Reads pickles of protocols 2 to 5 with a closed list of opcodes and names. Executes nothing.

#include <string>
#include <string_view>

#include "format/pickle_graph.hpp"
#include "glu_ckpt/error.hpp"

namespace glu_ckpt {

/// The names that a pickle may hold: those of tensors and state dicts, or those of a .metadata file. `Any` takes every
/// name and every call: nothing is run either way, so a trainer's state is read around what is foreign in it.
enum class PickleNames { Torch, DcpMetadata, Any };

/// The use that a name may be put to.
enum class NameUse {
  /// The name is not in the list.
  Refused,
  /// May stand as a value (a dtype, a storage type, an enum's class), not be called.
  Value,
  /// May be called by REDUCE or NEWOBJ as well.
  Callable,
};
NameUse name_use(PickleNames names, std::string_view module, std::string_view name);

/// Reads one pickle at the start of graph.source().substr(begin) and returns its root; `*end` is set to the
/// position after STOP. `part` is what source() was read from. Nodes get their position().
/// Throws the Pickle* errors.
PickleRef read_pickle(PickleGraph& graph, PickleNames names, const InputPart& part, std::size_t begin = 0,
                      std::size_t* end = nullptr);

}  // namespace glu_ckpt
