#pragma once
/// The output of a conversion before it exists: as a reader will see it, the record that it carries, and the hashers of
/// both sides.

#include <optional>
#include <string>

#include "convert/conversion.hpp"

namespace glu_ckpt {

/// The output as its own names, shapes and record describe it: what a reader of the finished checkpoint sees.
struct OutputModel {
  Inventory inventory;
  Recognition recognition;

  ModelShape shape() const { return {inventory, recognition}; }
};

/// Recognizes the plan's outputs by `record` and the source's config.json. Pure.
OutputModel output_model(const Conversion& conversion, const Record& record);

/// Returns whether two models have the same names, dtypes, shapes and order of the rows.
bool same_layout(const ModelShape& a, const ModelShape& b);

/// The output's provenance; without a digest where none is to be recorded.
Record make_record(const Conversion& conversion, const std::optional<Digest>& digest);

/// The digest in the source's record; empty where there is none, or the source was changed on purpose.
std::string believed_digest(const Conversion& conversion);

/// Reads that digest, where that speaks of the tensors that are converted: all of them. Throws
/// RecordContradicts where it counts others.
std::optional<Digest> recorded_digest(const Conversion& conversion, const Digest& blank);

[[noreturn]] void fail_contradicted(const Conversion& conversion, const std::string& recorded,
                                    const std::string& found);

/// The tensors and the layout that the passes of a conversion compare the output with. Keeps a reference to the
/// conversion.
class ExpectedOutput {
 public:
  /// With `inherits_digest` the record gets the digest of the source's own record: bytes that are cloned are not read,
  /// so no digest is made of them.
  ExpectedOutput(const Conversion& conversion, bool inherits_digest);

  bool inherits_digest() const { return inherits_digest_; }
  const ModelLeaves& source_leaves() const { return source_leaves_; }
  const ModelLeaves& output_leaves() const { return output_leaves_; }
  const OutputModel& model() const { return model_; }
  /// The record whose length fixes the size of the headers.
  Record blank_record() const { return record(blank_digest()); }
  /// The final record, where the digest of the tensors is `digest`.
  Record record(const std::optional<Digest>& digest) const;

 private:
  Digest blank_digest() const;

  const Conversion& conversion_;
  bool inherits_digest_;
  ModelLeaves source_leaves_;
  OutputModel model_;
  ModelLeaves output_leaves_;
};

}  // namespace glu_ckpt
