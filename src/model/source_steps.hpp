#pragma once
/// The steps that make another model of one that is opened, in the order in which open_as() takes them. Each replaces
/// the source by one that makes its tensors of the former, as they are read; where it throws, the source stays.

#include <memory>
#include <utility>

#include "glu_ckpt/checkpoint.hpp"
#include "glu_ckpt/model.hpp"
#include "quant/quantized_tensor.hpp"

namespace glu_ckpt {

/// A Source that makes its tensors of another one's. It is made before it owns that, so that a failure on the way
/// leaves the other source where it was. No byte of it is a byte of a file.
class WrappedSource : public Source {
 public:
  void own(std::unique_ptr<Source> source) { stored_ = std::move(source); }

  const CheckpointInfo& info() const override { return info_; }
  bool may_have_read_nan_or_infinity() const override { return stored_->may_have_read_nan_or_infinity(); }
  bool is_cheap_in_parts() const override { return stored_->is_cheap_in_parts(); }
  const ContentCheck* content_check() const override { return stored_->content_check(); }
  const FileBacked* file_backed() const override { return nullptr; }
  void compute_on(const std::weak_ptr<WeightDevice>& device) override { stored_->compute_on(device); }

 protected:
  explicit WrappedSource(CheckpointInfo info) : info_(std::move(info)) {}
  const Source& stored() const { return *stored_; }

  CheckpointInfo info_;

 private:
  std::unique_ptr<Source> stored_;
};

/// Replaces a source by one that has, beside all of its own tensors, those of the checkpoint SourceAnswers::fill_from
/// that it lacks: multi-token prediction, a head, a vision or audio tower, and single matrices of its layers outside of
/// the experts; no whole layer of the main stack, and none of its experts. A copy of the embedding or of the head is
/// made of the source's own. config.json follows, and the record lists what was filled (`filled`), as info().filled
/// does. Both become Hugging Face's form first. The source stays where it lacks nothing. Throws NotSupported where the
/// two are no models of one family and of the same sizes, or where one has codes and the other has none.
void fill_source(std::unique_ptr<Source>& source, const SourceAnswers& answers);

/// Returns whether the answers ask for a part.
bool asks_for_part(const SourceAnswers& answers);

/// Replaces a source by one in the form of which take_part() takes parts: Hugging Face's. Throws NoMap.
void lay_out_for_part(std::unique_ptr<Source>& source, const SourceAnswers& answers);

/// Replaces a source by one that has the layers that SourceAnswers::layers names, counted anew from 0, the routed
/// experts that keep_experts names, with their routers' rows, and no multi-token prediction where drop_mtp says so. Its
/// config.json says the same, and its record what was left out (`part`). Another naming becomes Hugging Face's first.
/// Throws LayerMissing for layers that there are not, Usage for a list with holes, NoMap for a model whose layers
/// nobody knows, and NotSupported where its configuration has no words for the part.
void take_part(std::unique_ptr<Source>& source, const SourceAnswers& answers);

/// Replaces a source by one with the products of SourceAnswers::merge added to its weights, as `merge_and_unload()` of
/// PEFT adds them on a CPU. Throws what opening and recognizing throw, and the errors of read_adapter_config() and
/// find_factors().
void merge_adapter(std::unique_ptr<Source>& source, const SourceAnswers& answers);

/// Returns the width of experts that a record says they had before an earlier run padded them; 0 where it says nothing.
i64 recorded_width_before_padding(const Record& record);

/// Replaces a source by one whose experts have the least width that is a multiple of SourceAnswers::pad_experts, or
/// where unpad says so, the width that they had before; where they have that width already, the source stays. The rows
/// behind the last one of gate and up, and the columns behind the last one of down, are zero; new scales are 1.
/// config.json has the new width, a shared expert whose width is made of it follows, and the record has the old one
/// (`padded_from`). The experts become tensors of their own, as lay_out_apart() has them. Throws NotExact where
/// --unpad would take away what is not zero, RecordContradicts where nothing says what was added, and NotSupported for
/// an optimizer's states, for codes of other formats than FP8, and where config.json has no words for it.
void pad_experts(std::unique_ptr<Source>& source, const SourceAnswers& answers);

/// Replaces a source by one whose tensors have the dtypes that SourceAnswers::dtypes says, by their roles or names.
/// Codes, their scales, integers and an optimizer's states stay as they are. Wider dtypes are exact. Narrower ones
/// round to nearest, ties to even; how many elements that changes is counted, in the record too (`dtypes`, `rounded`),
/// and NaN and infinity are warned of. Where decode_plainly says so, elements are rounded by a search among all values
/// of the dtype, and not counted. Throws Usage for what is no rule and for a rule that is about nothing, and NotExact
/// for a narrower dtype without allow_narrowing.
void cast_tensors(std::unique_ptr<Source>& source, const SourceAnswers& answers);

/// Returns whether the quantized weights are codes of SourceAnswers::encode that this program made, by the record, and
/// by the encoder of encode_as where that is named.
bool has_codes_of(const Source& source, const Quantization& found, const SourceAnswers& answers);

/// Replaces a source by one whose linear layers are codes of SourceAnswers::encode, as the published models of its
/// family have them: all of attention and of MLPs, not embeddings, head, norms, routers, convolutions and gates. A
/// source whose weights are such codes already stays. Throws NotSupported for one with other codes, NoMap for a model
/// whose other matrices nobody knows, what recognition throws, and the errors of encode_source().
void encode_weights(std::unique_ptr<Source>& source, const SourceAnswers& answers);

}  // namespace glu_ckpt
