#include "glu_ckpt/error.hpp"

#include <array>
#include <new>

#include "core/fail.hpp"

namespace glu_ckpt {
namespace {

using enum ExitStatus;

struct ErrorRow {
  ErrorCode code;
  std::string_view slug;
  ExitStatus status;
};

constexpr auto kErrors = std::to_array<ErrorRow>({
    {ErrorCode::Usage, "usage", Usage},
    {ErrorCode::UnknownNaming, "unknown-naming", Usage},
    {ErrorCode::NotFound, "not-found", BrokenInput},
    {ErrorCode::NotSupported, "not-supported", BrokenInput},
    {ErrorCode::AccessDenied, "access-denied", BrokenInput},
    {ErrorCode::FileTruncated, "file-truncated", BrokenInput},
    {ErrorCode::HeaderTooSmall, "header-too-small", BrokenInput},
    {ErrorCode::HeaderTooLarge, "header-too-large", BrokenInput},
    {ErrorCode::HeaderLength, "header-length", BrokenInput},
    {ErrorCode::HeaderUtf8, "header-utf8", BrokenInput},
    {ErrorCode::HeaderJson, "header-json", BrokenInput},
    {ErrorCode::HeaderDepth, "header-depth", BrokenInput},
    {ErrorCode::HeaderField, "header-field", BrokenInput},
    {ErrorCode::DuplicateKey, "duplicate-key", BrokenInput},
    {ErrorCode::MetadataNotString, "metadata-not-string", BrokenInput},
    {ErrorCode::BadNumber, "bad-number", BrokenInput},
    {ErrorCode::DtypeUnknown, "dtype-unknown", BrokenInput},
    {ErrorCode::ShapeOverflow, "shape-overflow", BrokenInput},
    {ErrorCode::SubByteShape, "sub-byte-shape", BrokenInput},
    {ErrorCode::SizeMismatch, "size-mismatch", BrokenInput},
    {ErrorCode::OffsetsReversed, "offsets-reversed", BrokenInput},
    {ErrorCode::OffsetsOverlap, "offsets-overlap", BrokenInput},
    {ErrorCode::OffsetsHole, "offsets-hole", BrokenInput},
    {ErrorCode::OffsetsPastEnd, "offsets-past-end", BrokenInput},
    {ErrorCode::TrailingBytes, "trailing-bytes", BrokenInput},
    {ErrorCode::IndexJson, "index-json", BrokenInput},
    {ErrorCode::IndexPath, "index-path", BrokenInput},
    {ErrorCode::IndexMissingShard, "index-missing-shard", BrokenInput},
    {ErrorCode::IndexStale, "index-stale", BrokenInput},
    {ErrorCode::IndexIncomplete, "index-incomplete", BrokenInput},
    {ErrorCode::ConfigJson, "config-json", BrokenInput},
    {ErrorCode::ExpertMissing, "expert-missing", BrokenInput},
    {ErrorCode::ExpertExtra, "expert-extra", BrokenInput},
    {ErrorCode::ExpertShape, "expert-shape", BrokenInput},
    {ErrorCode::ExpertDtype, "expert-dtype", BrokenInput},
    {ErrorCode::BiasIncomplete, "bias-incomplete", BrokenInput},
    {ErrorCode::PartMissing, "part-missing", BrokenInput},
    {ErrorCode::UnexplainedKey, "unexplained-key", BrokenInput},
    {ErrorCode::RecordInvalid, "record-invalid", BrokenInput},
    {ErrorCode::RecordContradicts, "record-contradicts", BrokenInput},
    {ErrorCode::SourceChanged, "source-changed", BrokenInput},
    {ErrorCode::ZipDirectory, "zip-directory", BrokenInput},
    {ErrorCode::ZipCompressed, "zip-compressed", BrokenInput},
    {ErrorCode::ZipLocalHeader, "zip-local-header", BrokenInput},
    {ErrorCode::ZipOverlap, "zip-overlap", BrokenInput},
    {ErrorCode::ZipCrc, "zip-crc", BrokenInput},
    {ErrorCode::PickleTruncated, "pickle-truncated", BrokenInput},
    {ErrorCode::PickleOpcode, "pickle-opcode", BrokenInput},
    {ErrorCode::PickleStack, "pickle-stack", BrokenInput},
    {ErrorCode::PickleMemo, "pickle-memo", BrokenInput},
    {ErrorCode::PickleGlobal, "pickle-global", BrokenInput},
    {ErrorCode::PickleCall, "pickle-call", BrokenInput},
    {ErrorCode::PickleDepth, "pickle-depth", BrokenInput},
    {ErrorCode::PickleLimit, "pickle-limit", BrokenInput},
    {ErrorCode::TorchObject, "torch-object", BrokenInput},
    {ErrorCode::TorchStorage, "torch-storage", BrokenInput},
    {ErrorCode::TorchStrides, "torch-strides", BrokenInput},
    {ErrorCode::DcpMetadata, "dcp-metadata", BrokenInput},
    {ErrorCode::DcpMissingFile, "dcp-missing-file", BrokenInput},
    {ErrorCode::DcpItemRange, "dcp-item-range", BrokenInput},
    {ErrorCode::DcpItemOverlap, "dcp-item-overlap", BrokenInput},
    {ErrorCode::DcpItemMismatch, "dcp-item-mismatch", BrokenInput},
    {ErrorCode::ChunkBounds, "chunk-bounds", BrokenInput},
    {ErrorCode::ChunkOverlap, "chunk-overlap", BrokenInput},
    {ErrorCode::ChunkHole, "chunk-hole", BrokenInput},
    {ErrorCode::ExtrasInvalid, "extras-invalid", BrokenInput},
    {ErrorCode::TrackerInvalid, "tracker-invalid", BrokenInput},
    {ErrorCode::ScaleMissing, "scale-missing", BrokenInput},
    {ErrorCode::ScaleOrphan, "scale-orphan", BrokenInput},
    {ErrorCode::QuantConfigContradicts, "quant-config-contradicts", BrokenInput},
    {ErrorCode::LayerMissing, "layer-missing", BrokenInput},
    {ErrorCode::ModelShape, "model-shape", BrokenInput},
    {ErrorCode::ModelIncomplete, "model-incomplete", BrokenInput},
    {ErrorCode::CopyDiffers, "copy-differs", BrokenInput},
    {ErrorCode::TokensInvalid, "tokens-invalid", BrokenInput},
    {ErrorCode::AmbiguousNaming, "ambiguous-naming", Refused},
    {ErrorCode::RedundantKeys, "redundant-keys", Refused},
    {ErrorCode::UnknownGlu, "unknown-glu", Refused},
    {ErrorCode::GluConflict, "glu-conflict", Refused},
    {ErrorCode::UnknownActivation, "unknown-activation", Refused},
    {ErrorCode::NotGated, "not-gated", Refused},
    {ErrorCode::NotDivisible, "not-divisible", Refused},
    {ErrorCode::RaggedExperts, "ragged-experts", Refused},
    {ErrorCode::AlreadyInLayout, "already-in-layout", Refused},
    {ErrorCode::NoExperts, "no-experts", Refused},
    {ErrorCode::NotExact, "not-exact", Refused},
    {ErrorCode::NoSpelling, "no-spelling", Refused},
    {ErrorCode::NoMap, "no-map", Refused},
    {ErrorCode::ForeignOrder, "foreign-order", Refused},
    {ErrorCode::UnknownTensor, "unknown-tensor", Refused},
    {ErrorCode::NameCollision, "name-collision", Refused},
    {ErrorCode::OutputExists, "output-exists", Refused},
    {ErrorCode::OutputBusy, "output-busy", Refused},
    {ErrorCode::OutputInsideSource, "output-inside-source", Refused},
    {ErrorCode::SourceNeeded, "source-needed", Refused},
    {ErrorCode::ResumeMismatch, "resume-mismatch", Refused},
    {ErrorCode::OptimizerBuckets, "optimizer-buckets", Refused},
    {ErrorCode::ExtrasNoPlace, "extras-no-place", Refused},
    {ErrorCode::PlanUnproved, "plan-unproved", Refused},
    {ErrorCode::Io, "io", MachineFailed},
    {ErrorCode::Network, "network", MachineFailed},
    {ErrorCode::NoSpace, "no-space", MachineFailed},
    {ErrorCode::NoMemory, "no-memory", MachineFailed},
    {ErrorCode::NoDevice, "no-device", MachineFailed},
    {ErrorCode::DeviceFailed, "device-failed", MachineFailed},
    {ErrorCode::VerifyFailed, "verify-failed", Differs},
    {ErrorCode::Interrupted, "interrupted", Stopped},
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
ExitStatus exit_status(ErrorCode code) { return row(code).status; }

Error current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::NoMemory, "out of memory; a smaller --max-memory or fewer --jobs may help");
  } catch (const std::exception& error) {
    return Error(ErrorCode::Io, error.what());
  }
}

}  // namespace glu_ckpt
