/// The texts behind `help SLUG` and docs/errors.md: the cause of each error, and the ways out.

#include "cli/error_help.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace glu_ckpt::cli {
namespace {

struct ErrorText {
  ErrorCode code;
  std::string_view cause;
  std::string_view ways;
  /// A command line without the program's name; empty where none helps.
  std::string_view example;
};

constexpr auto kTexts = std::to_array<ErrorText>({
    {ErrorCode::Usage,
     "The command line is not one that the program understands: a command, an option or a value that it does not have, "
     "or an argument too few.",
     "The message names the word and the nearest one that exists. The help of the command lists its options.",
     "help convert"},
    {ErrorCode::UnknownNaming, "No table of names is called so.",
     "`layouts` lists the namings that there are; the message names the nearest.", "layouts qwen"},
    {ErrorCode::NotFound, "The path, or a file that a checkpoint's own files name, does not exist.",
     "Check the path. A model of the hub is brought here by `hf download`.", "inspect ./Qwen3-30B-A3B"},
    {ErrorCode::NotSupported,
     "The input is of a kind that this program does not read, or has a form that it does not convert; the message says "
     "which.",
     "The message names what does read it, or how to make a form that is read.", "inspect PATH"},
    {ErrorCode::AccessDenied,
     "A server does not give the source to whoever asks (401, 403), or shows a certificate that is not trusted.",
     "Check the address; set HF_TOKEN for the hub, AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for S3, "
     "SSL_CERT_FILE for a certificate of your own.",
     "inspect hf://ORG/NAME"},
    {ErrorCode::FileTruncated,
     "A file ends before the bytes that it should hold, as after a download or a copy that stopped.",
     "Download or copy the file again and compare its size with the original.", "check PATH"},
    {ErrorCode::HeaderTooSmall, "A safetensors file is shorter than the eight bytes that every one begins with.",
     "The file is empty or cut off; download or copy it again.", ""},
    {ErrorCode::HeaderTooLarge,
     "The first eight bytes of a safetensors file give its header an impossible length: the file is something else "
     "under that name, or its header needs more memory than is allowed.",
     "The message says what the file is where that shows: a Git LFS pointer, a page of HTML, GGUF. Bring the file "
     "itself, or raise --max-memory for a header that is really so long.",
     ""},
    {ErrorCode::HeaderLength, "The header of a safetensors file reaches past the end of the file.",
     "The file is cut off or damaged; download or copy it again.", "check PATH"},
    {ErrorCode::HeaderUtf8, "The header of a safetensors file is not UTF-8.",
     "The file is damaged; download or copy it again.", ""},
    {ErrorCode::HeaderJson, "The header of a safetensors file is no JSON object.",
     "The file is damaged, or no safetensors file; download or copy it again.", ""},
    {ErrorCode::HeaderDepth, "The header of a safetensors file nests deeper than any real one.",
     "The file is damaged or was made to do harm; take it from a source that you trust.", ""},
    {ErrorCode::HeaderField, "An entry of a safetensors header lacks a field or has one of the wrong kind.",
     "The file was damaged, or written by a program with a fault; write it again with a current safetensors.", ""},
    {ErrorCode::DuplicateKey,
     "One name stands twice in a file or in the files of one checkpoint, so that two tensors claim it.",
     "Write the checkpoint again, or remove the file that holds the one that is not meant.",
     "inspect PATH --tensors 'NAME'"},
    {ErrorCode::MetadataNotString,
     "An entry of __metadata__ in a safetensors header is no string, which the format demands.",
     "Write the file again with text alone in its metadata.", ""},
    {ErrorCode::BadNumber, "A number in a header is negative, has a fraction or does not fit 63 bits.",
     "The file is damaged; download or copy it again.", ""},
    {ErrorCode::DtypeUnknown, "A tensor has a dtype that this version does not know.",
     "A newer version may know it; otherwise save the tensor in a dtype that is listed in docs/targets.md.", ""},
    {ErrorCode::ShapeOverflow, "The elements of a tensor are more than any file can hold.",
     "The file is damaged or was made to do harm; take it from a source that you trust.", ""},
    {ErrorCode::SubByteShape, "A tensor of a dtype smaller than a byte does not fill whole bytes.",
     "The file was written by a program with a fault; write it again.", ""},
    {ErrorCode::SizeMismatch, "The bytes of a tensor are more or fewer than its dtype and shape take.",
     "The file is damaged or was written by a program with a fault; download it or write it again.", ""},
    {ErrorCode::OffsetsReversed, "A tensor ends in its file before it begins.",
     "The file is damaged; download or copy it again.", ""},
    {ErrorCode::OffsetsOverlap, "Two tensors of a safetensors file share bytes.",
     "The file was written by a program with a fault; write it again with a current safetensors.", ""},
    {ErrorCode::OffsetsHole, "Between two tensors of a safetensors file lie bytes that belong to neither.",
     "The file was written by a program with a fault; write it again with a current safetensors.", ""},
    {ErrorCode::OffsetsPastEnd,
     "A tensor reaches past the end of its file, as after a download or a copy that stopped.",
     "Download or copy the file again.", "check PATH"},
    {ErrorCode::TrailingBytes, "A file goes on after its last tensor.",
     "The file is damaged, or two files were joined; download or copy it again.", ""},
    {ErrorCode::IndexJson, "The index of a sharded checkpoint is no JSON of the known form.",
     "Download the index again; where it is a Git LFS pointer, `git lfs pull` brings it.", ""},
    {ErrorCode::IndexPath, "The index of a sharded checkpoint names a file that is not below its own directory.",
     "Such an index may be made to do harm. Correct it, or take the checkpoint from a source that you trust.", ""},
    {ErrorCode::IndexMissingShard,
     "Shards that the index lists, or that the names of the others promise, are not there.",
     "The message names them all. `hf download` of the same repository goes on with a download that stopped.", ""},
    {ErrorCode::IndexStale, "The index says that a tensor is in a shard that does not have it.",
     "The index is of another version of the checkpoint than the shards; download both again.", ""},
    {ErrorCode::IndexIncomplete, "A shard holds a tensor that the index does not list, so programs would not load it.",
     "Write the index again, or take the whole checkpoint of one version.", ""},
    {ErrorCode::ConfigJson, "config.json, or a file beside it, is no JSON, or holds a value that no model can have.",
     "The message names the field. Correct it, or name another file with --from-config.",
     "inspect PATH --from-config config.json"},
    {ErrorCode::ExpertMissing, "An expert that the others or the configuration promise is not there.",
     "The checkpoint is incomplete: bring the shard or the rank that is missing.",
     "inspect PATH --tensors '*experts*'"},
    {ErrorCode::ExpertExtra, "There are more experts than the configuration says.",
     "The tensors and config.json are of two models; bring the config.json of this one, or name it with --from-config.",
     ""},
    {ErrorCode::ExpertShape,
     "An expert's tensor has another shape than the other experts' or than the configuration says.",
     "The tensors and config.json are of two models, or a tensor was damaged.",
     "inspect PATH --tensors '*experts.3.*'"},
    {ErrorCode::ExpertDtype,
     "An expert's tensor has another dtype than the other experts', so that they cannot become one tensor.",
     "Save all experts in one dtype, or keep them apart (--experts indexed).", "inspect PATH --tensors '*experts*'"},
    {ErrorCode::BiasIncomplete, "Some experts of a layer have a bias and others have none.",
     "The checkpoint is incomplete: bring the shard that is missing.", ""},
    {ErrorCode::PartMissing,
     "An expert has one of gate, up and down and lacks another, or an adapter has one of two factors.",
     "The checkpoint is incomplete: bring the shard that is missing.", ""},
    {ErrorCode::UnexplainedKey, "A tensor belongs to the experts by its name, and no naming says what it is there.",
     "The message names it. An adapter that was not merged is merged first; otherwise the naming is one that this "
     "version does not know.",
     "layouts"},
    {ErrorCode::RecordInvalid, "glu_ckpt.json, or a record in a file, cannot be read as one.",
     "Remove the record, and say with options what it said; or take the copy that convert wrote.",
     "inspect PATH --from-glu contiguous"},
    {ErrorCode::RecordContradicts, "The checkpoint's own record says what its tensors or its files contradict.",
     "The tensors or the record were changed since it was written. Copy the checkpoint again, or, if the "
     "change was meant, convert it with --accept-changes: the output gets a record of its own.",
     "convert PATH DST --to hf --accept-changes"},
    {ErrorCode::SourceChanged, "A file of the source changed while it was read.",
     "Wait until whoever writes it has ended, and run the same command again.", ""},
    {ErrorCode::ZipDirectory,
     "A file of PyTorch has no directory at its end: it is cut off, or was not written by torch.save.",
     "Download or copy it again. Files of before PyTorch 1.6 are saved once more with a current torch.save.", ""},
    {ErrorCode::ZipCompressed, "A record in a file of PyTorch is compressed, which torch.save never does.",
     "Unpack the file and save it with torch.save.", ""},
    {ErrorCode::ZipLocalHeader, "A record in a file of PyTorch does not begin as the directory at the end says.",
     "The file is damaged; download or copy it again.", ""},
    {ErrorCode::ZipOverlap, "Two records in a file of PyTorch share bytes.",
     "The file is damaged or was made to do harm; take it from a source that you trust.", ""},
    {ErrorCode::ZipCrc, "The bytes of a record in a file of PyTorch are not those of its checksum.",
     "The file is damaged; download or copy it again.", ""},
    {ErrorCode::PickleTruncated, "The pickle in a file of PyTorch ends in the middle.",
     "The file is cut off; download or copy it again.", ""},
    {ErrorCode::PickleOpcode, "A pickle holds an instruction that no checkpoint needs.",
     "The file was made by another program, or to do harm; save the state dict with a current torch.save.", ""},
    {ErrorCode::PickleStack, "A pickle takes more from its stack than it put there.",
     "The file is damaged or was made to do harm; save the state dict again.", ""},
    {ErrorCode::PickleMemo, "A pickle refers to an object that it has not made.",
     "The file is damaged or was made to do harm; save the state dict again.", ""},
    {ErrorCode::PickleGlobal,
     "A pickle names a class or a function that checkpoints do not hold. Nothing of a pickle is run.",
     "Save the tensors alone: torch.save(model.state_dict(), FILE).", ""},
    {ErrorCode::PickleCall, "A pickle calls a function in a way that checkpoints do not. Nothing of a pickle is run.",
     "Save the tensors alone: torch.save(model.state_dict(), FILE).", ""},
    {ErrorCode::PickleDepth, "A pickle nests deeper than any real one.",
     "The file was made to do harm, or holds more than a state dict; save the tensors alone.", ""},
    {ErrorCode::PickleLimit, "A pickle needs more memory than --max-memory leaves for it.",
     "Raise --max-memory, or save the tensors alone.", "inspect FILE.pt --max-memory 4GiB"},
    {ErrorCode::TorchObject,
     "A file of PyTorch holds an object where a tensor should be, or a tensor of a kind that is not read.",
     "Save the tensors alone, dense and on the CPU: torch.save(model.state_dict(), FILE).", ""},
    {ErrorCode::TorchStorage, "A tensor of a file of PyTorch lies outside of its storage, or the storage is not there.",
     "The file is damaged; download or copy it again.", ""},
    {ErrorCode::TorchStrides, "The strides of a tensor reach outside of its storage, or name one element twice.",
     "Save the tensor as a contiguous one: tensor.contiguous().", ""},
    {ErrorCode::DcpMetadata, "The .metadata of a distributed checkpoint cannot be read.",
     "The file is damaged, or a newer PyTorch wrote a form that this version does not know; copy the checkpoint again.",
     ""},
    {ErrorCode::DcpMissingFile, "A file that .metadata names is not there.",
     "A rank had not written its part, or the copy stopped: copy the whole directory again.", ""},
    {ErrorCode::DcpItemRange, "A part of a tensor lies outside of its file.",
     "The file is cut off; copy the checkpoint again.", ""},
    {ErrorCode::DcpItemOverlap, "Two parts of tensors share bytes of one file.",
     "The checkpoint is damaged; copy it again.", ""},
    {ErrorCode::DcpItemMismatch, "What a file of a distributed checkpoint holds is not what .metadata says.",
     "The files are of two saves, or one is damaged; copy the whole directory again.", ""},
    {ErrorCode::ChunkBounds, "A part of a tensor lies outside of the tensor.",
     "The .metadata is damaged; copy the checkpoint again.", ""},
    {ErrorCode::ChunkOverlap, "Two parts of a tensor cover one element.",
     "The .metadata is damaged; copy the checkpoint again.", ""},
    {ErrorCode::ChunkHole, "No part of the checkpoint holds some elements of a tensor.",
     "A rank is missing: copy the files of all ranks into one directory.", ""},
    {ErrorCode::ExtrasInvalid, "The file in which convert keeps what the target has no place for cannot be read.",
     "Copy the conversion's output again, or convert again from the original.", ""},
    {ErrorCode::TrackerInvalid, "latest_checkpointed_iteration.txt names no checkpoint that is there.",
     "Give the directory of one iteration, such as RUN/iter_0001000.", "inspect RUN/iter_0001000"},
    {ErrorCode::ScaleMissing, "Quantized weights have lost the scales that make numbers of them.",
     "Bring the shard that holds the scales; nothing can decode the weights without.", ""},
    {ErrorCode::ScaleOrphan, "A scale is there, and the weights that it is of are not, or are no codes.",
     "The checkpoint is incomplete, or was decoded in part; bring all of it.", ""},
    {ErrorCode::QuantConfigContradicts, "quantization_config says another form of weights than the tensors have.",
     "Bring the config.json of this checkpoint, or name it with --from-config.", ""},
    {ErrorCode::LayerMissing, "A layer that the configuration or the other layers promise is not there.",
     "The checkpoint is incomplete: bring the shard or the rank that holds it.", "inspect PATH"},
    {ErrorCode::ModelShape, "A tensor has another shape than config.json gives it.",
     "The tensors and config.json are of two models; bring the config.json of this one, or name it with --from-config.",
     "inspect PATH --from-config config.json"},
    {ErrorCode::ModelIncomplete, "A tensor that the model must have is not there.",
     "The checkpoint is incomplete: bring the shard or the rank that holds it.", "inspect PATH"},
    {ErrorCode::CopyDiffers,
     "Two tensors that should be copies of one, such as tied embeddings, differ, and nothing says which one counts.",
     "Find out which one the model uses, and remove the other.", "inspect PATH --tensors '*embed*'"},
    {ErrorCode::TokensInvalid, "The file of tokens for `forward` has another shape or dtype than the layer takes.",
     "Give a safetensors file with a tensor [tokens, hidden size]; the message names the sizes.", "help forward"},
    {ErrorCode::AmbiguousNaming, "The names of the tensors fit several namings.",
     "Say which one it is with --from-naming, or put the config.json beside the tensors.",
     "inspect PATH --from-naming hf:qwen3_moe"},
    {ErrorCode::RedundantKeys,
     "Two tensors are one weight of the model by their names, and nothing says which one counts.",
     "Remove the one that is not meant.", "inspect PATH --tensors"},
    {ErrorCode::UnknownGlu,
     "FC1 holds rows of gate and of up, and no file says in which order. A wrong guess gives a model that loads and "
     "computes something else.",
     "Say the order with --from-glu, or record it once with `stamp`. Whoever trained the model knows it: Megatron's "
     "argument moe_mlp_glu_interleave_size, or none for contiguous. If you have the model that training began from, "
     "`verify START RUN --to-glu contiguous` names the order in which the two are equal; after much training, `diff "
     "START RUN --to-glu ORDER` shows small differences for the right order alone.",
     "convert RUN OUT --to hf --from-glu contiguous"},
    {ErrorCode::GluConflict,
     "Two sources of the order of gate and up disagree: an option, the record, the arguments of the trainer, a "
     "megatron_args.txt, the naming.",
     "Find out which one is right. Leave the option out, take a wrong record out with `stamp RUN --remove` and record "
     "the right order with `stamp RUN --glu ORDER`, or mend megatron_args.txt.",
     "stamp RUN --remove"},
    {ErrorCode::UnknownActivation, "No config.json says what the experts compute between FC1 and FC2.",
     "Say it with --activation.", "forward PATH --activation swiglu"},
    {ErrorCode::NotGated, "The experts have no gate, so there is no order of gate and up to choose.",
     "Leave --glu out.", ""},
    {ErrorCode::NotDivisible, "The rows of gate and up do not divide into blocks of the size that was asked for.",
     "Choose a block size K that divides the width of an expert.", "plan SRC DST --glu interleaved:32"},
    {ErrorCode::RaggedExperts, "The experts of one layer have several widths, so that they cannot become one tensor.",
     "Keep them apart: --experts indexed.", ""},
    {ErrorCode::AlreadyInLayout, "The source has the layout that was asked for.",
     "There is nothing to do; --force makes a copy all the same.", "convert SRC DST --to hf --force"},
    {ErrorCode::NoExperts, "No tensors of experts were recognized, and the command is about experts.",
     "Give the directory with its config.json; `inspect` says what is there.", "inspect PATH"},
    {ErrorCode::NotExact, "The conversion would change values, lose some, or not come back.",
     "The message says which tensor and why, and what keeps it exact: --glu split, --experts indexed, --decode.",
     "plan SRC DST"},
    {ErrorCode::NoSpelling, "The target has no name for a tensor of the source.",
     "Choose a naming that has one (`layouts`). Codes and scales have names in Hugging Face's form alone: --to hf "
     "writes it, and --decode bf16 makes weights of codes.",
     "convert RUN OUT --to hf --encode fp8:128x128"},
    {ErrorCode::NoMap,
     "No table says how the whole model is named in the target: its family is not mapped, or no file says what model "
     "it is.",
     "Say what model it is with --from-config. Of a family that is not mapped, --scope experts converts the experts "
     "alone.",
     "convert RUN OUT --to hf --from-config config.json"},
    {ErrorCode::ForeignOrder,
     "Programs that read the target's names expect another order of gate and up than was asked for, and cannot see the "
     "difference.",
     "Leave --glu out, or give the order that the message names. --allow-foreign-order writes it all the same.",
     "convert SRC DST --to hf"},
    {ErrorCode::UnknownTensor,
     "A tensor of a known model is one that no map knows, so nothing says what becomes of it.",
     "Remove it if it is not the model's, or convert the experts alone with --scope experts.",
     "inspect PATH --tensors"},
    {ErrorCode::NameCollision, "Two tensors or two files of the output would have one name.",
     "Convert the two parts by themselves.", ""},
    {ErrorCode::OutputExists, "Something is at DST already. Nothing is ever replaced unasked.",
     "Choose another name, or give --overwrite.", "convert SRC DST --overwrite"},
    {ErrorCode::OutputBusy, "Another run, perhaps on another host, writes to DST, or consumes SRC.",
     "Wait until it ends. If it was killed, do what the message says and use --resume.", "convert SRC DST --resume"},
    {ErrorCode::OutputInsideSource, "DST lies inside of SRC, or is SRC.", "Choose a DST beside the source.", ""},
    {ErrorCode::SourceNeeded,
     "--consume-source would remove what is not yours alone (a cache of the hub, links, a read-only file or directory, "
     "a server), or what the output does not hold: then removing it would lose a part of the model.",
     "Convert without --consume-source, or from a copy that nobody else needs; the message says what is in the way.",
     "plan SRC DST --consume-source"},
    {ErrorCode::ResumeMismatch,
     "DST.partial was begun by another command, or by one with other options, or from another source.",
     "Give the options of that run, or choose another DST. Where the message does not say that SRC's files are in it "
     "alone, DST.partial may be removed.",
     ""},
    {ErrorCode::OptimizerBuckets,
     "The optimizer's state lies in flat buffers that do not say which bytes are whose, so that its layout cannot "
     "change.",
     "Leave it out with --optimizer drop, or let the trainer save it once with --dist-ckpt-optim-fully-reshardable.",
     "convert RUN OUT --to hf --optimizer drop"},
    {ErrorCode::ExtrasNoPlace, "The source has what the target's format has no place for.",
     "The message names it; choose another --format, or the target that has a place for it.", ""},
    {ErrorCode::PlanUnproved,
     "The plan of a conversion was not proved to write every byte once. This is a fault of this program.",
     "Report it with the command and the output of `inspect`. Nothing was written.", ""},
    {ErrorCode::Io, "The operating system refused to read or write.",
     "The message has the file and the system's reason; `doctor` shows what it says of a directory.", "doctor DIR"},
    {ErrorCode::Network, "A server was not reached, or did not answer as it should, however often it was asked.",
     "Run the same command again later; --resume fetches only what is missing. GLU_CKPT_RETRIES sets the number of "
     "tries, HF_HUB_DOWNLOAD_TIMEOUT the seconds of patience.",
     "convert hf://ORG/NAME DST --resume"},
    {ErrorCode::NoSpace, "The disk has less room than the output needs.",
     "Free some space or choose another disk; `plan` says how much is needed. What was written is kept for --resume. "
     "convert --consume-source needs no room for a second copy: it removes each file of SRC once DST has all of it.",
     "plan SRC DST --consume-source"},
    {ErrorCode::NoMemory, "The machine has less memory than the run needs.", "Lower --max-memory or --jobs.",
     "convert SRC DST --max-memory 512MiB -j 2"},
    {ErrorCode::NoDevice, "The device that was asked for is not there, or this build has no kernels for it.",
     "Use --device cpu, or see what `doctor` says.", "doctor"},
    {ErrorCode::DeviceFailed, "The GPU failed in the middle of the work.",
     "Run the same command with --resume, or with --device cpu.", "convert SRC DST --device cpu --resume"},
    {ErrorCode::VerifyFailed, "What was written is not what was read. The output is not put in place.",
     "Memory or a disk may be failing: run the command again, on another machine if it happens twice.",
     "convert SRC DST --verify readback"},
    {ErrorCode::Interrupted, "A signal stopped the run.",
     "What is done is kept: the same command with --resume goes on with it.", "convert SRC DST --resume"},
});

constexpr bool texts_in_enum_order() {
  for (std::size_t i = 0; i < kTexts.size(); ++i)
    if (static_cast<std::size_t>(kTexts[i].code) != i) return false;
  return kTexts.size() == static_cast<std::size_t>(ErrorCode::Interrupted) + 1;
}
static_assert(texts_in_enum_order(), "each error has its text");

/// The slug as messages print it, in brackets, or bare.
const ErrorText* text_of(std::string_view word) {
  if (word.starts_with('[') && word.ends_with(']')) word = word.substr(1, word.size() - 2);
  const auto found = std::ranges::find_if(kTexts, [&](const ErrorText& text) { return slug(text.code) == word; });
  return found == kTexts.end() ? nullptr : &*found;
}

}  // namespace

std::vector<std::string> error_slugs() {
  std::vector<std::string> slugs;
  slugs.reserve(kTexts.size());
  for (const ErrorText& text : kTexts) slugs.emplace_back(slug(text.code));
  return slugs;
}

std::optional<std::string> error_help(std::string_view word, std::string_view program) {
  const ErrorText* text = text_of(word);
  if (text == nullptr) return std::nullopt;
  std::string out = fmt::format("{}: the run ends with status {}.\n\nCause:\n", slug(text->code),
                                static_cast<int>(exit_status(text->code)));
  append_wrapped(out, 2, text->cause);
  out += "\nWays out:\n";
  append_wrapped(out, 2, text->ways);
  if (!text->example.empty()) out += fmt::format("\nExample:\n  {} {}\n", program, text->example);
  return out;
}

std::string errors_page(std::string_view program) {
  std::string out = fmt::format(
      "# Errors\n\nEvery error ends with a word in brackets, which never changes once it is released; with `--json` it "
      "is "
      "the\nfield `error`. `{} help WORD` prints the same text as this page, which is made by `{} help --page "
      "errors`.\n",
      program, program);
  constexpr std::pair<ExitStatus, std::string_view> kParts[] = {
      {ExitStatus::Differs, "two sides differ"},
      {ExitStatus::Usage, "the command line"},
      {ExitStatus::BrokenInput, "the input is broken, or of a kind that is not supported"},
      {ExitStatus::Refused, "the conversion is refused"},
      {ExitStatus::MachineFailed, "the machine failed"},
      {ExitStatus::Stopped, "a signal stopped the run"},
  };
  for (const auto& [status, title] : kParts) {
    out += fmt::format("\n## Status {}: {}\n", static_cast<int>(status), title);
    for (const ErrorText& text : kTexts) {
      if (exit_status(text.code) != status) continue;
      out += fmt::format("\n### {}\n\n{} {}\n", slug(text.code), text.cause, text.ways);
      if (!text.example.empty()) out += fmt::format("\n```sh\n{} {}\n```\n", program, text.example);
    }
  }
  return out;
}

}  // namespace glu_ckpt::cli
