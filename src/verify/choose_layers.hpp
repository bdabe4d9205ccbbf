#pragma once
/// Reads a list of layers.

#include <string>
#include <vector>

namespace glu_ckpt {

/// Returns those `labels` that `list` names, in their own order: labels and ranges of numbers between commas,
/// "3,5-7,mtp.0". A range names the layers in it that there are. An empty list names all. Throws LayerMissing for an
/// item that names none, Usage for a list that cannot be read.
std::vector<std::string> choose_layers(const std::vector<std::string>& labels, const std::string& list);

}  // namespace glu_ckpt
