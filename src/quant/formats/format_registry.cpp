/// All formats of this folder, in the order of meson.build, which also makes the list of them.

#include "quant/formats/format_list.hpp"
#include "quant/formats/quant_format.hpp"

namespace glu_ckpt {

FORMAT_DECLARATIONS

std::span<const QuantFormat* const> quant_formats() {
  static constexpr const QuantFormat* kFormats[] = {FORMAT_ENTRIES};
  return kFormats;
}

const QuantFormat* format_of_words(std::string_view method) {
  for (const QuantFormat* format : quant_formats())
    for (const MethodRow& row : format->methods)
      if (row.word == method && format->versions.begin() != format->versions.end()) return format;
  return nullptr;
}

std::vector<FormRef> forms_of(TensorKind kind, Dtype dtype) {
  std::vector<FormRef> found;
  for (const QuantFormat* format : quant_formats())
    for (const CodeForm& form : format->forms)
      if (form.kind == kind && form.dtype == dtype) found.push_back({format, &form});
  return found;
}

}  // namespace glu_ckpt
