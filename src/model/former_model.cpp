#include "model/former_model.hpp"

#include "families/architecture.hpp"

namespace glu_ckpt {
namespace {

std::set<std::string> split(const std::string& text) {
  std::set<std::string> names;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    if (end > begin) names.insert(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

}  // namespace

FormerModel former_model(const Record& record, const ModelHints& hints, const Recognition& model) {
  FormerModel former;
  const Architecture* const architecture = model.architecture.get();
  if (architecture != nullptr) {
    former.root = architecture->family->root;
    for (const Wrapper& wrapper : architecture->family->wrappers)
      if (!hints.text_model_type.empty() && wrapper.model_type == hints.model_type) former.root = wrapper.root;
  }
  if (const auto root = record.find("hf_root"); root != record.end()) former.root = root->second;
  // Respelled as the hub has it, a model stays inside of a multimodal one.
  const bool is_from_hub = architecture != nullptr && model.dense_naming == &architecture->family->naming;
  if (is_from_hub && !model.dense_root.empty()) former.root = model.dense_root;
  if (const auto copies = record.find("hf_copies"); copies != record.end()) former.copies = split(copies->second);
  if (const auto dtype = record.find("hf_computed_dtype"); dtype != record.end())
    former.computed_dtype = dtype_from_name(dtype->second);
  return former;
}

}  // namespace glu_ckpt
