#pragma once
/// Writes a value graph as a pickle of protocol 2, which torch.load(weights_only=True) reads.

#include <string>

#include "format/pickle_graph.hpp"

namespace glu_ckpt {

/// Shared nodes are written once and fetched from the memo. Deterministic. Throws PickleDepth.
std::string write_pickle(const PickleGraph& graph, PickleRef root);

}  // namespace glu_ckpt
