#pragma once
/// What a conversion writes, as a reader will see it, and what names a run.

#include <optional>
#include <string>

#include "cli/session.hpp"

namespace glu_ckpt::cli {

/// The output as its own names, shapes and record describe it: what a reader of the finished checkpoint sees.
struct OutputModel {
  Inventory inventory;
  Recognition recognition;
};

/// Pure: recognizes the plan's outputs by this record and the source's config.json.
OutputModel output_model(const Plan& plan, const Source& source, const Record& record);

/// The output's provenance; without a digest where none is to be recorded.
Record make_record(const Recognition& recognition, const Plan& plan, const std::optional<Digest>& digest);

/// Whether two models have the same names, dtypes, shapes and order of the rows.
bool same_layout(const Inventory& a, const Recognition& a_recognition, const Inventory& b,
                 const Recognition& b_recognition);

/// What config.json holds: the plan was made by it. The other files beside the tensors are copied as they are then, and
/// may be logs that grow. A line, or nothing. Throws Io, NotFound.
std::string config_of(const Source& source);

/// Everything that decides about the output's bytes, so that a run is only resumed as itself. `config`: the
/// source's config_of(). `bytes_to_clone`: what is cloned has no digest, so that the headers are others.
std::string fingerprint_of(const Options& options, const Opened& opened, const Plan& plan, Format format,
                           const std::string& config, i64 bytes_to_clone);

}  // namespace glu_ckpt::cli
