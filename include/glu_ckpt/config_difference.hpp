#pragma once
/// Fields of config.json by which two models with the same weights compute differently.

#include <string>
#include <vector>

namespace glu_ckpt {

/// A field of config.json that has a say in what a model computes.
struct ConfigDifference {
  std::string field;
  /// The values as JSON; that of the family's class where the text does not say it.
  std::string a;
  std::string b;
};

enum class QuantizationFields { Skip, Compare };

/// Compares the texts of two configurations of language models: what both say, or have a default for. Left out are
/// fields about files, programs, tokens and training, and those whose say the tensors have. A text that is empty or no
/// JSON object has no fields.
std::vector<ConfigDifference> config_differences(const std::string& a, const std::string& b,
                                                 QuantizationFields quantization = QuantizationFields::Skip);

/// "rms_norm_eps is 1e-05 in A and 1e-06 in B; rope_theta is ...".
std::string to_sentence(const std::vector<ConfigDifference>& differences, const std::string& a = "A",
                        const std::string& b = "B");

}  // namespace glu_ckpt
