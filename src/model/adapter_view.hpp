#pragma once
/// An adapter (LoRA) of PEFT, opened by itself.

#include <memory>

#include "adapters/read_factors.hpp"
#include "glu_ckpt/model.hpp"

namespace glu_ckpt {

/// Reads adapter_config.json beside the tensors. Throws NotSupported where there is none, and what
/// read_adapter_config() throws.
AdapterConfig adapter_config_of(const Source& adapter);

/// Throws NotSupported where adapter_config.json names another model than the config.json of `model_config`: shapes and
/// names of two may be alike, while their rows are in other orders.
void check_adapted_model(const Source& adapter, const AdapterConfig& config, const std::string& model_config,
                         const Architecture* architecture);

/// Throws Usage for answers that an adapter, or a model, has no use for.
void check_adapter_answers(const SourceAnswers& answers, bool is_adapter);

/// Replaces an adapter by one in the layout of SourceAnswers::adapter_layout: tensors are moved when they are read, and
/// adapter_config.json says the same. Without a layout each matrix of each expert has factors and their scale, so that
/// one adapter has the same tensors in any layout. It stays where it has that layout already, and where it throws: what
/// read_factors() and lay_out_adapter() throw.
void view_adapter(std::unique_ptr<Source>& source, const SourceAnswers& answers);

/// Reads what an adapter is, and checks it as far as it is known what model it is for. Throws what view_adapter()
/// throws.
AdapterSummary summarize_adapter(const Source& adapter, const SourceAnswers& answers);

/// Sentences about target_modules in adapter_config.json that contradicts the factors. Throws what adapter_config_of()
/// throws.
std::vector<std::string> target_texts(const Source& adapter);

/// The entry of an adapter's record that says how factors of packed experts are written: a word of lora_file_words().
inline constexpr std::string_view kLoraFiles = "lora_files";

/// Returns how an adapter's factors of packed experts were written, by its record or else by the answers. Throws
/// RecordContradicts where these disagree.
PackedFiles packed_files_of(const Source& adapter, const SourceAnswers& answers);

/// The programs that load an adapter. Throws what view_adapter() throws.
LoadsIn adapter_loaders(const Source& adapter, const SourceAnswers& answers);

}  // namespace glu_ckpt
