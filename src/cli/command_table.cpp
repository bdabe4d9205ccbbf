#include "cli/command_table.hpp"

#include <cctype>

namespace glu_ckpt::cli {

Definitions environment_variables() {
  return {
      {"GLU_CKPT_CUBLAS",
       "The file of the cuBLAS library that `bench forward` compares with, where the dynamic linker "
       "does not find libcublas.so.13 or .12."},
      {"NO_COLOR",
       "Set to anything, it keeps messages and help without colours. Elsewhere than on a terminal they have none."},
      {"FORCE_COLOR", "Set to anything, it gives them colours elsewhere, too; so does CLICOLOR_FORCE. --color wins."},
      {"HF_TOKEN, HF_ENDPOINT", "The token for hf:// (else ~/.cache/huggingface/token), and another hub."},
      {"AWS_*",
       "Credentials, profile, region and endpoint for s3://, as the AWS tools have them; ~/.aws is read, too."},
      {"http_proxy, https_proxy, no_proxy", "A proxy for remote sources. SSL_CERT_FILE names other certificates."},
      {"HF_HUB_DOWNLOAD_TIMEOUT", "Seconds without a byte after which a request is tried again; 30."},
      {"GLU_CKPT_RETRIES", "How many times in a row a failed request is tried again; 8."},
      {"CUDA_VISIBLE_DEVICES", "The GPUs that the program sees, in a build with CUDA. It is CUDA's own variable."},
  };
}

Definitions exit_statuses() {
  return {
      {"0", "done, and verified unless --verify none was given"},
      {"1", "compared, and different"},
      {"2", "usage: unknown option, bad value, options that exclude each other"},
      {"3", "the input is broken, truncated, inconsistent, hostile, or of a kind not supported"},
      {"4", "refused: ambiguous, already in that layout, DST exists, or a conversion that could not be exact"},
      {"5", "the machine failed: no space, I/O error, no memory, no such device"},
      {"6", "stopped by SIGINT, SIGTERM, SIGHUP or SIGUSR1; run it again with --resume"},
  };
}

Definitions program_files() {
  return {
      {"glu_ckpt.json",
       "The record of an output, beside its tensors: the layout, the options, the digest, and a checksum for each "
       "file. "
       "`inspect` and later conversions believe it, `check` compares it, and `stamp` adds a layout to it. A single "
       ".safetensors file has its record in its own header."},
      {"glu_ckpt.extras",
       "What a conversion carries that safetensors has no place for, such as a trainer's common state; the way back "
       "takes it from there."},
      {"glu_ckpt.sha256", "The SHA-256 of every other file of an output, if `--manifest sha256` asked for it."},
      {"DST.partial",
       "The output while it is written. A run that was stopped leaves it with its journal, and --resume goes on there; "
       "without that it may be deleted."},
      {"glu_ckpt.journal",
       "The journal of a conversion, in DST.partial: what is written already. No output has one when it is complete."},
      {"megatron_args.txt",
       "The arguments with which Megatron-Core loads the output of `--to megatron`. Beside tensors of Megatron it "
       "also answers in which order gate and up are."},
      {"latest_checkpointed_iteration.txt",
       "Megatron's: it names the iter_* directory, or the release, that is the newest; a path to the directory above "
       "is "
       "read as that one."},
  };
}

Definitions printed_words() {
  return {
      {"parameters",
       "A line of `inspect`: how many numbers the weights are, all of them, and those that one token reaches. "
       "Multi-token prediction counts in both; an optimizer's state, scales and tensors that repeat others count in "
       "neither. Quantized weights count as what they decode to."},
      {"tensors",
       "In `inspect`, `plan` and `convert`: tensors as the files have them, those of an optimizer and scales among "
       "them. `verify`, `diff` and a digest count matrices instead."},
      {"matrices, matrix, MATRIX",
       "What `verify`, `diff`, `digest` and `inspect --tensors` count and name, the same in every layout: gate, up or "
       "down of one expert, q, k or v of one layer. A tensor may hold many. "
       "'Matrices and tensors' adds the tensors that no table knows."},
      {"adapter, LoRA, DoRA",
       "Factors that are added to a model's weights, as PEFT saves them. `convert ADAPTER DST --to vllm --from-config "
       "MODEL` lays them out for a program (vllm, sglang, hf, megatron), and `convert MODEL DST --merge ADAPTER` adds "
       "them. DoRA scales rows, too, which PEFT and --merge do."},
      {"beside", "A line of `inspect`: what sees, hears or talks beside the language model, and its bytes."},
      {"format",
       "A line of `inspect`: the kind of files, and their size with all headers. `plan` and `convert` print the size "
       "of the tensors without headers, as does `verify`."},
      {"layout, from, to",
       "A line of `inspect`, `plan` and `convert`: naming, grouping of experts, and order of gate and up."},
      {"glu",
       "Short for gate and up: the order of their rows in FC1. The line 'glu from' of `inspect` says what told it."},
      {"active", "The parameters that one token reaches: all but the routed experts that it is not sent to."},
      {"payload, headers",
       "The bytes of tensors are the payload; headers, indexes and files without tensors are not in it."},
      {"copies, copy",
       "Tensors that repeat others, such as the head of a tied model, or one scale written for each of several "
       "experts. They are compared with the originals."},
      {"part", "A line of `inspect`: which layers or experts of a larger model these are, as the record says."},
      {"padded", "A line of `inspect`: --pad-experts added zeros to the experts; --unpad takes them away."},
      {"quantized, decoded",
       "Lines of `inspect`: which weights are codes with scales, and which were decoded from such."},
      {"scales",
       "A line of `inspect`: the numbers that codes of quantized weights are multiplied by, and their blocks."},
      {"context, vocabulary",
       "In the line 'model' of `inspect`: max_position_embeddings and vocab_size of config.json."},
      {"problem",
       "A line of `inspect`: what keeps programs from loading the checkpoint. With --strict it makes the exit status."},
      {"loads",
       "The line 'loads in' names the programs that load this checkpoint as it is, with versions and arguments."},
      {"moves, peak, disk, clones, cloned",
       "Lines of `plan` and `convert`: copies to be made, the most memory that is needed, the room on the disk, and "
       "bytes that share their blocks with the source instead of being copied."},
      {"verified", "A line of `convert`: how the output was compared with the source, as --verify has it."},
      {"base, ranks, targets, modules",
       "Lines of `inspect` about an adapter, as adapter_config.json and its tensors say them."},
      {"LAYER, DIFFER, ELEMENTS",
       "Columns of `diff` and `verify`: a layer, how many of its matrices and tensors differ, and how many of its "
       "elements, with their share of all elements of the layer."},
      {"MAX, ABS", "The column MAX ABS of `diff`: the largest difference of two elements of the layer."},
      {"RMS",
       "A column of `diff`: the root mean square of A - B over all matrices and tensors of the layer, also those that "
       "are equal."},
      {"RELATIVE, COSINE",
       "Columns of `diff`: |A - B| / |A|, and the cosine of the angle between A and B. Both are of those matrices and "
       "tensors of the layer that differ, without those that are equal."},
      {"SNR", "In the note of --encode: the power of the weights over that of the error, in dB; larger is better."},
  };
}

std::string synopsis(const CommandTable& command) {
  std::string text = command.name;
  if (!command.groups.empty()) text += " [OPTIONS]";
  for (const OptionRow* option : all_options(command))
    if (option->required) text += " " + option->long_name + " " + option->value_name;
  for (const OptionRow& argument : command.arguments) {
    const std::string name = argument.value_name + (argument.many ? "..." : "");
    text += argument.required ? " " + name : " [" + name + "]";
  }
  if (!command.commands.empty()) text += " COMMAND";
  return text;
}

std::string sentence(std::string_view text) {
  std::string out(text);
  if (out.empty()) return out;
  out[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(out[0])));
  return out.ends_with('.') || out.ends_with('?') ? out : out + ".";
}

std::string command_words(const CommandTable& command) {
  const std::size_t blank = command.name.find(' ');
  return blank == std::string::npos ? "" : command.name.substr(blank + 1);
}

namespace {

void append_commands(const CommandTable& command, std::vector<const CommandTable*>& all) {
  all.push_back(&command);
  for (const CommandTable* one : subcommands(command)) append_commands(*one, all);
}

}  // namespace

std::vector<const CommandTable*> all_commands(const CommandTable& program) {
  std::vector<const CommandTable*> all;
  append_commands(program, all);
  return all;
}

std::vector<const CommandTable*> subcommands(const CommandTable& command) {
  std::vector<const CommandTable*> all;
  for (const auto& [title, commands] : command.commands)
    for (const CommandTable& one : commands) all.push_back(&one);
  return all;
}

std::vector<const OptionRow*> all_options(const CommandTable& command) {
  std::vector<const OptionRow*> all;
  for (const OptionGroup& group : command.groups)
    for (const OptionRow& row : group.options) all.push_back(&row);
  return all;
}

}  // namespace glu_ckpt::cli
