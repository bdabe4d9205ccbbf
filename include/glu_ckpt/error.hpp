#pragma once
/// Failures. The library throws `Error`; it never prints and never exits.

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace glu_ckpt {

/// Every way a run can fail. The one table in src/core/error.cpp gives each a slug (stable once
/// released) and an exit status.
enum class ErrorCode {
  Usage,
  UnknownNaming,
  // the input is broken, hostile or of a kind not supported
  NotFound,
  NotSupported,
  AccessDenied,
  FileTruncated,
  HeaderTooSmall,
  HeaderTooLarge,
  HeaderLength,
  HeaderUtf8,
  HeaderJson,
  HeaderDepth,
  HeaderField,
  DuplicateKey,
  MetadataNotString,
  BadNumber,
  DtypeUnknown,
  ShapeOverflow,
  SubByteShape,
  SizeMismatch,
  OffsetsReversed,
  OffsetsOverlap,
  OffsetsHole,
  OffsetsPastEnd,
  TrailingBytes,
  IndexJson,
  IndexPath,
  IndexMissingShard,
  IndexStale,
  IndexIncomplete,
  ConfigJson,
  ExpertMissing,
  ExpertExtra,
  ExpertShape,
  ExpertDtype,
  BiasIncomplete,
  PartMissing,
  UnexplainedKey,
  RecordInvalid,
  RecordContradicts,
  SourceChanged,
  ZipDirectory,
  ZipCompressed,
  ZipLocalHeader,
  ZipOverlap,
  ZipCrc,
  PickleTruncated,
  PickleOpcode,
  PickleStack,
  PickleMemo,
  PickleGlobal,
  PickleCall,
  PickleDepth,
  PickleLimit,
  TorchObject,
  TorchStorage,
  TorchStrides,
  DcpMetadata,
  DcpMissingFile,
  DcpItemRange,
  DcpItemOverlap,
  DcpItemMismatch,
  ChunkBounds,
  ChunkOverlap,
  ChunkHole,
  ExtrasInvalid,
  TrackerInvalid,
  ScaleMissing,
  ScaleOrphan,
  QuantConfigContradicts,
  LayerMissing,
  ModelShape,
  ModelIncomplete,
  CopyDiffers,
  TokensInvalid,
  // refused
  AmbiguousNaming,
  RedundantKeys,
  UnknownGlu,
  GluConflict,
  UnknownActivation,
  NotGated,
  NotDivisible,
  RaggedExperts,
  AlreadyInLayout,
  NoExperts,
  NotExact,
  NoSpelling,
  NoMap,
  ForeignOrder,
  UnknownTensor,
  NameCollision,
  OutputExists,
  OutputBusy,
  OutputInsideSource,
  SourceNeeded,
  ResumeMismatch,
  OptimizerBuckets,
  ExtrasNoPlace,
  PlanUnproved,
  // the machine failed
  Io,
  Network,
  NoSpace,
  NoMemory,
  NoDevice,
  DeviceFailed,
  VerifyFailed,
  Interrupted,
};

/// Short stable name of a code, e.g. "offsets-overlap".
std::string_view slug(ErrorCode code);
/// The exit statuses of the program. The numbers are stable, for scripts branch on them.
enum class ExitStatus {
  Done = 0,
  /// Two sides were compared, and differ.
  Differs = 1,
  Usage = 2,
  /// The input is broken, inconsistent, or of a kind that is not supported.
  BrokenInput = 3,
  /// The conversion is ambiguous, could not be exact, or would overwrite something.
  Refused = 4,
  MachineFailed = 5,
  /// A signal stopped the run; --resume goes on with it.
  Stopped = 6,
};
/// The exit status for a code, which is not Done.
ExitStatus exit_status(ErrorCode code);

/// Bytes of an input file that something is read from, for errors: they name the file and count from its start.
struct InputPart {
  InputPart() = default;
  InputPart(std::string path, std::int64_t first = 0, std::string within = {})
      : file(std::move(path)), begin(first), inside(std::move(within)) {}
  InputPart(const char* path) : file(path) {}

  std::string file;
  /// Position of the part's first byte in the file. Negative where the bytes were made from the file's, so that no
  /// position means anything.
  std::int64_t begin = 0;
  /// Names what was decoded, where the file holds the bytes encoded: positions then count from its start.
  std::string inside;
};

/// A failure: a code for programs and a sentence for people that names file, tensor and numbers
/// and says what to do.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, std::string file = {}, std::string tensor = {})
      : std::runtime_error(message), code_(code), file_(std::move(file)), tensor_(std::move(tensor)) {}
  ErrorCode code() const { return code_; }
  /// Path of the file at fault; empty when none is.
  const std::string& file() const { return file_; }
  /// Name of the tensor at fault; empty when none is.
  const std::string& tensor() const { return tensor_; }
  /// The options that would answer all that is unknown ("--from-glu"), where that is the failure.
  const std::vector<std::string>& missing_options() const { return missing_options_; }
  Error with_missing_options(std::vector<std::string> options) const {
    Error error = *this;
    error.missing_options_ = std::move(options);
    return error;
  }

 private:
  ErrorCode code_;
  std::string file_;
  std::string tensor_;
  std::vector<std::string> missing_options_;
};

}  // namespace glu_ckpt
