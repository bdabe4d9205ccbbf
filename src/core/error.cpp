#include "glu_ckpt/error.hpp"

#include <array>

namespace glu_ckpt {
namespace {

struct ErrorRow {
  ErrorCode code;
  std::string_view slug;
  int status;
};

constexpr auto kErrors = std::to_array<ErrorRow>({
    {ErrorCode::Usage, "usage", 2},
    {ErrorCode::UnknownNaming, "unknown-naming", 2},
    {ErrorCode::NotFound, "not-found", 3},
    {ErrorCode::NotSupported, "not-supported", 3},
    {ErrorCode::FileTruncated, "file-truncated", 3},
    {ErrorCode::HeaderTooSmall, "header-too-small", 3},
    {ErrorCode::HeaderTooLarge, "header-too-large", 3},
    {ErrorCode::HeaderLength, "header-length", 3},
    {ErrorCode::HeaderUtf8, "header-utf8", 3},
    {ErrorCode::HeaderJson, "header-json", 3},
    {ErrorCode::HeaderDepth, "header-depth", 3},
    {ErrorCode::HeaderField, "header-field", 3},
    {ErrorCode::DuplicateKey, "duplicate-key", 3},
    {ErrorCode::MetadataNotString, "metadata-not-string", 3},
    {ErrorCode::BadNumber, "bad-number", 3},
    {ErrorCode::DtypeUnknown, "dtype-unknown", 3},
    {ErrorCode::ShapeOverflow, "shape-overflow", 3},
    {ErrorCode::SubByteShape, "sub-byte-shape", 3},
    {ErrorCode::SizeMismatch, "size-mismatch", 3},
    {ErrorCode::OffsetsReversed, "offsets-reversed", 3},
    {ErrorCode::OffsetsOverlap, "offsets-overlap", 3},
    {ErrorCode::OffsetsHole, "offsets-hole", 3},
    {ErrorCode::OffsetsPastEnd, "offsets-past-end", 3},
    {ErrorCode::TrailingBytes, "trailing-bytes", 3},
    {ErrorCode::IndexJson, "index-json", 3},
    {ErrorCode::IndexPath, "index-path", 3},
    {ErrorCode::IndexMissingShard, "index-missing-shard", 3},
    {ErrorCode::IndexStale, "index-stale", 3},
    {ErrorCode::IndexIncomplete, "index-incomplete", 3},
    {ErrorCode::ConfigJson, "config-json", 3},
    {ErrorCode::ExpertMissing, "expert-missing", 3},
    {ErrorCode::ExpertExtra, "expert-extra", 3},
    {ErrorCode::ExpertShape, "expert-shape", 3},
    {ErrorCode::ExpertDtype, "expert-dtype", 3},
    {ErrorCode::BiasIncomplete, "bias-incomplete", 3},
    {ErrorCode::PartMissing, "part-missing", 3},
    {ErrorCode::UnexplainedKey, "unexplained-key", 3},
    {ErrorCode::RecordInvalid, "record-invalid", 3},
    {ErrorCode::RecordContradicts, "record-contradicts", 3},
    {ErrorCode::SourceChanged, "source-changed", 3},
    {ErrorCode::ZipDirectory, "zip-directory", 3},
    {ErrorCode::ZipCompressed, "zip-compressed", 3},
    {ErrorCode::ZipLocalHeader, "zip-local-header", 3},
    {ErrorCode::ZipOverlap, "zip-overlap", 3},
    {ErrorCode::ZipCrc, "zip-crc", 3},
    {ErrorCode::PickleTruncated, "pickle-truncated", 3},
    {ErrorCode::PickleOpcode, "pickle-opcode", 3},
    {ErrorCode::PickleStack, "pickle-stack", 3},
    {ErrorCode::PickleMemo, "pickle-memo", 3},
    {ErrorCode::PickleGlobal, "pickle-global", 3},
    {ErrorCode::PickleCall, "pickle-call", 3},
    {ErrorCode::PickleDepth, "pickle-depth", 3},
    {ErrorCode::PickleLimit, "pickle-limit", 3},
    {ErrorCode::TorchObject, "torch-object", 3},
    {ErrorCode::TorchStorage, "torch-storage", 3},
    {ErrorCode::TorchStrides, "torch-strides", 3},
    {ErrorCode::DcpMetadata, "dcp-metadata", 3},
    {ErrorCode::DcpMissingFile, "dcp-missing-file", 3},
    {ErrorCode::DcpItemRange, "dcp-item-range", 3},
    {ErrorCode::DcpItemOverlap, "dcp-item-overlap", 3},
    {ErrorCode::DcpItemMismatch, "dcp-item-mismatch", 3},
    {ErrorCode::ChunkBounds, "chunk-bounds", 3},
    {ErrorCode::ChunkOverlap, "chunk-overlap", 3},
    {ErrorCode::ChunkHole, "chunk-hole", 3},
    {ErrorCode::ExtrasInvalid, "extras-invalid", 3},
    {ErrorCode::TrackerInvalid, "tracker-invalid", 3},
    {ErrorCode::LayerMissing, "layer-missing", 3},
    {ErrorCode::ModelShape, "model-shape", 3},
    {ErrorCode::ModelIncomplete, "model-incomplete", 3},
    {ErrorCode::CopyDiffers, "copy-differs", 3},
    {ErrorCode::TokensInvalid, "tokens-invalid", 3},
    {ErrorCode::AmbiguousNaming, "ambiguous-naming", 4},
    {ErrorCode::RedundantKeys, "redundant-keys", 4},
    {ErrorCode::UnknownGlu, "unknown-glu", 4},
    {ErrorCode::GluConflict, "glu-conflict", 4},
    {ErrorCode::UnknownActivation, "unknown-activation", 4},
    {ErrorCode::NotGated, "not-gated", 4},
    {ErrorCode::NotDivisible, "not-divisible", 4},
    {ErrorCode::RaggedExperts, "ragged-experts", 4},
    {ErrorCode::AlreadyInLayout, "already-in-layout", 4},
    {ErrorCode::NoExperts, "no-experts", 4},
    {ErrorCode::NotExact, "not-exact", 4},
    {ErrorCode::NoSpelling, "no-spelling", 4},
    {ErrorCode::NoMap, "no-map", 4},
    {ErrorCode::UnknownTensor, "unknown-tensor", 4},
    {ErrorCode::NameCollision, "name-collision", 4},
    {ErrorCode::OutputExists, "output-exists", 4},
    {ErrorCode::OutputBusy, "output-busy", 4},
    {ErrorCode::OutputInsideSource, "output-inside-source", 4},
    {ErrorCode::ResumeMismatch, "resume-mismatch", 4},
    {ErrorCode::OptimizerBuckets, "optimizer-buckets", 4},
    {ErrorCode::ExtrasNoPlace, "extras-no-place", 4},
    {ErrorCode::PlanUnproved, "plan-unproved", 4},
    {ErrorCode::Io, "io", 5},
    {ErrorCode::NoSpace, "no-space", 5},
    {ErrorCode::NoMemory, "no-memory", 5},
    {ErrorCode::NoDevice, "no-device", 5},
    {ErrorCode::DeviceFailed, "device-failed", 5},
    {ErrorCode::VerifyFailed, "verify-failed", 1},
    {ErrorCode::Interrupted, "interrupted", 6},
});

constexpr const ErrorRow& row(ErrorCode code) { return kErrors[static_cast<std::size_t>(code)]; }

constexpr bool rows_in_enum_order() {
  for (std::size_t i = 0; i < kErrors.size(); ++i)
    if (static_cast<std::size_t>(kErrors[i].code) != i) return false;
  return kErrors.size() == static_cast<std::size_t>(ErrorCode::Interrupted) + 1;
}
static_assert(rows_in_enum_order());

}  // namespace

std::string_view slug(ErrorCode code) { return row(code).slug; }
int exit_status(ErrorCode code) { return row(code).status; }

}  // namespace glu_ckpt
