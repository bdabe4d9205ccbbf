/// The one table of commands and options. An option is a row: its names and the name of its value, its meaning, how it
/// is read into the field that it sets, its default. A function for each set of options that several commands have.

#include <algorithm>

#include "bench/bench.hpp"
#include "cli/command_table.hpp"
#include "cli/error_help.hpp"
#include "cli/option_values.hpp"
#include "cli/run.hpp"
#include "glu_ckpt/model.hpp"

namespace glu_ckpt::cli {
namespace {

// NOLINTBEGIN(bugprone-macro-parentheses): the path of a member takes no parentheses.
/// A field of the options.
#define FIELD(path) \
  [](Options & o) -> auto& { return o.path; }
// NOLINTEND(bugprone-macro-parentheses)

using Rows = std::vector<OptionRow>;

constexpr auto kGeneralOptions = "Options";

/// `spec`: "-j,--jobs N", "--force", "SRC".
OptionRow option(std::string_view spec, std::string about, ValueKind kind, std::string default_text = {}) {
  OptionRow row;
  if (const std::size_t comma = spec.find(','); comma != spec.npos) {
    row.short_name = spec.substr(0, comma);
    spec.remove_prefix(comma + 1);
  }
  const bool is_option = spec.starts_with('-');
  const std::size_t blank = is_option ? std::min(spec.find(' '), spec.size()) : 0;
  row.long_name = spec.substr(0, blank);
  row.value_name = spec.substr(std::min(blank + (is_option ? 1 : 0), spec.size()));
  row.about = std::move(about);
  row.default_text = std::move(default_text);
  row.words = std::move(kind.words);
  row.set = std::move(kind.set);
  return row;
}

OptionRow required(OptionRow row) {
  row.required = true;
  return row;
}

OptionRow needs(OptionRow row, std::vector<std::string> others) {
  row.needs = std::move(others);
  return row;
}

OptionRow excludes(OptionRow row, const std::string& other) {
  row.excludes = {other};
  return row;
}

OptionRow many(OptionRow row) {
  row.many = true;
  return row;
}

OptionRow input(std::string_view spec, const char* about = "file or directory") {
  return required(option(spec, about, checkpoint(FIELD(input))));
}

OptionRow second_input(std::string_view spec, const char* about) {
  return option(spec, about, checkpoint(FIELD(output)));
}

/// Checkpoints, each of which is answered for itself.
OptionRow inputs(const char* about) {
  return many(option("PATH", about, {[](Options& options, const std::string& typed) {
                       options.paths.push_back(find_input(typed));
                       return std::string();
                     }}));
}

Rows joined(std::initializer_list<Rows> parts) {
  Rows all;
  for (const Rows& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Rows json() { return {option("--json", "one JSON object on stdout", flag(FIELD(json)))}; }

OptionGroup general(
    const Rows& first = joined({
        json(),
        {option("-q,--quiet", "no reports, notes or progress; warnings, errors and data (--json, lists, digests) stay",
                flag(FIELD(quiet))),
         option("-v,--verbose", "longer reports, and the reasons of decisions", flag(FIELD(verbose)))},
    })) {
  return {kGeneralOptions,
          joined({first,
                  {option("--color WHEN", "colours in messages and help",
                          choice<report::Colors>(FIELD(color), {{"auto", report::Colors::Auto},
                                                                {"always", report::Colors::Always},
                                                                {"never", report::Colors::Never}}),
                          "auto"),
                   option("-h,--help", "print this help; -h is the short one, without values and defaults", {})}})};
}

OptionRow dropped_optimizer() {
  return option("--optimizer WHAT", "the optimizer's tensors",
                choice<bool>(FIELD(from.drop_optimizer), {{"keep", false}, {"drop", true}}), "keep");
}

OptionRow dropped_part() { return option("--drop PART", "a model without this part", dropped_parts()); }

OptionGroup source() {
  return {
      "What the source is, where it does not say",
      {
          option("--from-naming NAMING", "its naming, where its keys fit several", naming(FIELD(from.naming))),
          option("--from-config FILE", "a config.json that says what model it is, or the directory that has it",
                 config_file(FIELD(from.config_file))),
          option("--from-glu ORDER", "its order of gate and up: contiguous, interleaved:K", glu(FIELD(from.glu))),
          option("--from-shared-glu ORDER", "the same for its shared expert", glu(FIELD(from.shared_glu))),
          option("--from-optimizer-glu ORDER", "the same for the optimizer's state of routed experts",
                 glu(FIELD(from.optimizer_glu)), "as --from-glu"),
          option("--decode DTYPE", "quantized weights become weights of this dtype",
                 choice<Dtype>(FIELD(from.decode), {{"bf16", Dtype::BF16}, {"f32", Dtype::F32}})),
          option("--decode-as PROGRAM", "the program whose decoder is followed, bit for bit, where programs differ",
                 one_of(FIELD(from.decode_as), decoder_names()), "that of the program that wrote the format"),
          option("--keep-experts LIST",
                 "a model of these routed experts alone: the same of all layers (0-7 or 0,1,5), or a FILE of JSON that "
                 "has "
                 "a list for each layer",
                 kept_experts()),
          option(
              "--fill-from PATH",
              "a checkpoint of the same model, for tensors that the source lacks: multi-token prediction, a vision or "
              "audio tower, a correction bias, a head",
              checkpoint(FIELD(from.fill_from))),
          option("--merge ADAPTER", "a LoRA adapter of PEFT, whose products are added to the weights",
                 text(FIELD(from.merge))),
          option("--merge-as PROGRAM", "the way in which they are added, bit for bit",
                 one_of(FIELD(from.merge_as), merge_programs()), "peft"),
          excludes(option("--pad-experts N", "experts get zero rows and columns, up to a width that is a multiple of N",
                          number<i64>(FIELD(from.pad_experts), 1, i64{1} << 28)),
                   "--unpad"),
          option("--unpad", "experts lose what --pad-experts added, as the record says", flag(FIELD(from.unpad))),
          many(option("--dtype RULE...",
                      "tensors get these dtypes (bf16, f16, f32), by a pattern of roles or names; the first rule that "
                      "fits counts: 'router=f32' 'norm/*=f32' '*=bf16'",
                      text(FIELD(from.dtypes)))),
          option("--allow-narrowing", "--dtype may round, to nearest even", flag(FIELD(from.allow_narrowing))),
          option("--from-lora FILES", "an adapter's factors of packed experts, where shapes do not tell who wrote them",
                 one_of(FIELD(from.from_lora), lora_file_words())),
          option(
              "--encode FORMAT",
              "weights are rounded to codes of this format; weights that are quantized already can only become mxfp8, "
              "where that is exact (else --decode bf16 beside it)",
              one_of(FIELD(from.encode), encoder_words())),
          option("--encode-as PROGRAM",
                 "the program whose encoder is followed, bit for bit. slime is a trainer, whose convert_hf_to_fp8.py "
                 "makes FP8 in blocks; it is the default there, as it keeps small weights that deepgemm loses",
                 one_of(FIELD(from.encode_as), encoder_programs()),
                 "fp8:128x128 slime; fp8:128x128:ue8m0 deepgemm; fp8:channel, int4 compressed-tensors; mxfp4 triton; "
                 "mxfp8, nvfp4 modelopt"),
      }};
}

/// A source that is compared with what `convert` made of a part of it.
OptionGroup compared_source() {
  OptionGroup group = source();
  group.options.push_back(option("--from-layers FIRST-LAST",
                                 "a model of these layers of A alone, as --layers of convert makes it",
                                 text(FIELD(from.layers))));
  group.options.push_back(dropped_part());
  group.options.push_back(dropped_optimizer());
  return group;
}

OptionGroup second_source() {
  return {"What B is, where it does not say",
          {
              option("--to-naming NAMING", "as --from-naming, for B", naming(FIELD(verify.b.naming))),
              option("--to-glu ORDER", "as --from-glu, for B", glu(FIELD(verify.b.glu))),
              option("--to-shared-glu ORDER", "as --from-shared-glu, for B", glu(FIELD(verify.b.shared_glu))),
              option("--to-optimizer-glu ORDER", "as --from-optimizer-glu, for B", glu(FIELD(verify.b.optimizer_glu))),
          }};
}

Rows jobs() {
  return {option("-j,--jobs N", "worker threads", number<int>(FIELD(run.jobs), 1, 1024),
                 "one per core that it may run on")};
}

constexpr auto kMemoryOfHeaders = "memory for headers; the header of a file may have at most 1/64 of it";

Rows max_memory(const char* about = "bytes of all buffers together") {
  return {option("--max-memory SIZE", about, size(FIELD(run.memory_bytes)), "1GiB")};
}

OptionRow device(const char* about, std::initializer_list<const char*> words, const char* default_text) {
  return option("--device DEVICE", about, text(FIELD(run.device), words), default_text);
}

OptionRow device_memory(const char* about) {
  return option("--device-memory SIZE", about, size(FIELD(run.device_memory_bytes)), "1GiB");
}

OptionGroup work() {
  return {
      "Work",
      joined({jobs(),
              max_memory(),
              {
                  device("auto, cpu, cuda, cuda:N or cuda:all", {"auto", "cpu", "cuda", "cuda:0", "cuda:all"}, "auto"),
                  device_memory("bytes of the buffers on each GPU"),
                  option("--progress WHEN", "progress on stderr",
                         choice<ProgressMode>(
                             FIELD(progress),
                             {{"auto", ProgressMode::Auto, "a bar on a terminal, elsewhere a line every ten seconds"},
                              {"always", ProgressMode::Always, "elsewhere also a line at the end of each stage"},
                              {"never", ProgressMode::Never, "nothing"},
                              {"json", ProgressMode::Json,
                               "an object a line: when a stage begins and ends, and once a second"}}),
                         "auto"),
              }})};
}

/// What experts compute, and in which dtype.
Rows activation() {
  std::vector<Choice<ActivationKind>> kinds;
  for (const std::string_view name : activation_names()) kinds.push_back({name.data(), parse_activation(name)});
  return {
      option("--activation NAME", "the activation", choice<ActivationKind>(FIELD(compute.activation.kind), kinds),
             "as config.json says"),
      option("--alpha X", "of the quick GeGLUs; situ_glu: the bound of the gate",
             number<float>(FIELD(compute.activation.alpha)), "1.702; 4"),
      option("--limit X", "where clamped kinds clamp; situ_glu: the bound of the linear term, default 25",
             number<float>(FIELD(compute.activation.limit))),
      option("--offset X", "added to the linear term of the quick GeGLUs",
             number<float>(FIELD(compute.activation.offset))),
      option("--compute DTYPE", "what intermediate values are rounded to",
             choice<bool>(FIELD(compute.fp32), {{"weights", false, "the weights' dtype; sums are made in fp32"},
                                                {"fp32", true, "nothing, which shows smaller differences"}}),
             "weights"),
  };
}

/// The same where --forward asks for it.
Rows activation_of_forward() {
  Rows rows = activation();
  for (OptionRow& row : rows) row.needs = {"--forward"};
  return rows;
}

OptionRow manifest(const char* about) {
  return option(
      "--manifest KIND", about,
      choice<bool>(FIELD(convert.sha256_manifest), {{"sha256", true, "glu_ckpt.sha256, which sha256sum reads, too"}}));
}

OptionRow page() {
  return option("--html FILE", "the page to write, which needs no other file", text(FIELD(report_file)));
}

OptionRow overwrite_page() {
  return needs(option("--overwrite", "replace FILE", flag(FIELD(overwrite_report))), {"--html"});
}

OptionGroup destination(const std::string& program) {
  using Grouping = std::optional<Experts>;
  const std::vector<Choice<Grouping>> groupings = {
      {"indexed", Experts::Indexed, "one tensor per expert"},
      {"grouped", Experts::Grouped, "one tensor with a leading expert axis"},
      {"keep", std::nullopt, "as in SRC"}};
  return {
      "What DST will be; what is not given stays as it is in SRC",
      {
          option("--to TARGET", "the program that loads DST as it is", target()),
          option("--naming NAMING", "the keys alone; `" + program + " layouts` lists them",
                 naming(FIELD(convert.to.naming)), "keep"),
          option("--experts GROUPING", "how experts are grouped; a range (0-7) is as --keep-experts",
                 grouping_or_experts(choice<Grouping>(FIELD(convert.to.experts), groupings)), "keep"),
          option("--grow-rank", "an adapter may get more ranks, of zeros, where --experts grouped needs them",
                 flag(FIELD(from.grow_rank))),
          option("--to-lora FILES",
                 "who is to read an adapter's factors of packed experts; peft-0.19: any later one, too",
                 one_of(FIELD(from.to_lora), lora_file_words()), "peft-0.19"),
          option("--bias-experts GROUPING", "the same for biases alone",
                 choice<Grouping>(FIELD(convert.to.bias_experts), groupings, false), "as --experts"),
          option("--glu ORDER", "the order of gate and up rows", glu(FIELD(convert.to.glu), true), "keep"),
          option("--shared-glu ORDER", "the same for the shared expert", glu(FIELD(convert.to.shared_glu)), "keep"),
          option("--format FORMAT", "the kind of files",
                 choice<std::optional<Format>>(FIELD(convert.format), {{"keep", std::nullopt},
                                                                       {"safetensors", Format::Safetensors},
                                                                       {"torch", Format::Torch},
                                                                       {"torch-dist", Format::TorchDist}}),
                 "keep"),
          option("--scope SCOPE", "what a change of naming renames",
                 choice<Scope>(FIELD(convert.to.scope),
                               {{"model", Scope::Model, "the whole model"},
                                {"experts", Scope::Experts, "expert tensors alone, which no program loads"}}),
                 "model"),
          option("--unknown WHAT", "tensors that no map knows",
                 choice<bool>(FIELD(convert.to.keep_unknown), {{"refuse", false, "end with status 4"},
                                                               {"keep", true, "carry them under names of their own"}}),
                 "refuse"),
          option(
              "--stack-layers",
              "for Megatron: one tensor for all layers, with an axis that counts them, where others get one for each "
              "layer; a HybridModel loads a GPT model in that form alone",
              flag(FIELD(convert.to.stack_layers))),
          dropped_optimizer(),
          option("--layers FIRST-LAST",
                 "a model of these layers (0-3), or of one (7), counted anew from 0, with its configuration, and with "
                 "multi-token prediction unless --drop mtp (verify's --layers chooses what is compared)",
                 text(FIELD(from.layers))),
          dropped_part(),
          option("--max-shard-size SIZE", "tensor bytes per shard; of a model in the same layout, too",
                 size(FIELD(convert.max_shard_bytes), 1), "5GB; of a DST of 5 to 80GB a sixteenth, at least 1GB"),
      }};
}

Rows writing() {
  return {
      option("--verify HOW", "how DST is compared with SRC before it gets its name",
             choice<ProofMode>(FIELD(convert.proof),
                               {{"digest", ProofMode::Digest, "what is read and what is written"},
                                {"readback", ProofMode::Readback, "what the disk has, not the page cache"},
                                {"forward", ProofMode::Forward, "the experts compute the same, too"},
                                {"none", ProofMode::None, "not at all"}}),
             "digest"),
      option("--reflink WHEN", "share SRC's blocks, where the file system can",
             choice<Reflink>(FIELD(convert.reflink), {{"auto", Reflink::Auto, "where long runs stay as they are"},
                                                      {"always", Reflink::Always, "short runs, too"},
                                                      {"never", Reflink::Never, "copy"}}),
             "auto"),
      manifest("write a file with checksums of all others into DST, for check"),
      option("--allow-foreign-order",
             "write an order of gate and up that programs take for another under the same names",
             flag(FIELD(convert.allow_foreign_order))),
      option("--accept-changes", "take SRC as it is: its tensors were changed on purpose since its record was written",
             flag(FIELD(convert.accept_changes))),
      option("--force", "convert even if the source has that layout already", flag(FIELD(convert.force))),
      option("--overwrite", "replace DST once the new one is complete", flag(FIELD(convert.overwrite))),
      option("--resume", "go on with what a stopped run left in DST.partial, if there is any",
             flag(FIELD(convert.resume))),
      excludes(
          option("--part I/N",
                 "write the part I/N of DST, beside processes for 1/N to N/N on any hosts; the last one finishes it",
                 part()),
          "--overwrite"),
      excludes(option("--consume-source",
                      "remove each of SRC's files of tensors once DST.partial has all of it, proved and on the disk",
                      flag(FIELD(convert.consume_source))),
               "--overwrite"),
  };
}

CommandTable conversion(const std::string& program, const std::string& name, const std::string& about, Execute execute,
                        const Rows& first) {
  return {name,
          about,
          execute,
          {name + " Qwen3-30B-A3B OUT --to megatron", name + " RUN BACK --to hf --from-glu contiguous",
           name + " OUT OUT32 --glu interleaved:32", name + " SRC one.safetensors --experts grouped"},
          {input("SRC"), required(option("DST", "directory, or one file if it ends in .safetensors, .pt, .pth or .bin",
                                         text(FIELD(output))))},
          {destination(program),
           source(),
           {"How DST is written and checked", joined({first, writing()})},
           {"What --verify forward computes", activation()},
           work(),
           general()}};
}

CommandTable inspect_command() {
  OptionRow tensors =
      option("--tensors GLOB", "list tensors instead: all, or those whose name or matrix fits a pattern",
             {[](Options& options, const std::string& typed) {
               options.list_tensors = true;
               options.tensors = typed;
               return std::string();
             }});
  tensors.optional_value = true;
  return {"inspect",
          "what is it: layout, layers, experts, shapes; reads headers only",
          [](const Options& options) { return for_each_path(options, cmd_inspect); },
          {"inspect Qwen3-30B-A3B", "inspect iter_0001000 --json", "inspect Qwen3-30B-A3B --tensors '*.layers.3.*'"},
          {required(inputs("files or directories"))},
          {{"What is told",
            {tensors, option("--strict", "end with status 3 if there is any problem, such as an unknown order",
                             flag(FIELD(strict)))}},
           source(),
           {"Work", max_memory(kMemoryOfHeaders)},
           general()}};
}

CommandTable report_command() {
  return {
      "report",
      "one page to look at: what is in it, how its rows lie, what differs",
      cmd_report,
      {"report Qwen3-30B-A3B --html page.html", "report A B --html page.html", "report A B --html page.html --forward"},
      {input("A"), second_input("B", "file or directory to compare with A")},
      {{"The page", {required(page()), overwrite_page()}},
       {"Running the experts",
        joined({{option("--forward", "run the experts of both on the same tokens, too, and show the error",
                        flag(FIELD(report.forward)))},
                activation_of_forward()})},
       compared_source(),
       second_source(),
       work(),
       general()}};
}

CommandTable stamp_command() {
  return {
      "stamp",
      "record a layout that you know and the file does not say",
      cmd_stamp,
      {"stamp RUN --glu contiguous", "stamp RUN --glu interleaved:32 --shared-glu contiguous", "stamp RUN --remove"},
      {input("PATH")},
      {{"What is known",
        {option("--glu ORDER", "contiguous or interleaved:K", glu(FIELD(from.glu))),
         option("--shared-glu ORDER", "the same for the shared expert", glu(FIELD(from.shared_glu))),
         option("--optimizer-glu ORDER", "the same for the optimizer's state", glu(FIELD(from.optimizer_glu))),
         option("--naming NAMING", "the naming, where the keys fit several", naming(FIELD(from.naming)))}},
       {"Work", max_memory(kMemoryOfHeaders)},
       {"What is written",
        {option("--dry-run", "say what would be written, and write nothing", flag(FIELD(stamp_dry_run))),
         option("--remove", "take the recorded layout out again", flag(FIELD(remove_stamp)))}},
       general()}};
}

CommandTable verify_command() {
  return {
      "verify",
      "are these the same model, in whatever two layouts?",
      cmd_verify,
      {"verify Qwen3-30B-A3B OUT", "verify RUN OUT --from-glu contiguous", "verify A B --forward",
       "verify A B --sample 5%", "verify A gck2:..."},
      {input("A"), required(second_input("B", "file or directory, or a digest: gck2:..."))},
      {{"How much is compared",
        {option("--layers LIST", "only these, as `inspect` numbers them: 3,5-7,mtp.0",
                text(FIELD(verify.subset.layers))),
         excludes(option("--sample P%", "only P% of the matrices and tensors, that --seed chooses", percent()),
                  "--forward"),
         excludes(option("--part I/N", "only the part I/N of them, 1/N to N/N: for N machines", part()), "--forward"),
         needs(option("--seed N", "of the tokens, or of the sample", number<u64>(FIELD(verify.subset.seed)), "0"),
               {"--forward", "--sample"})}},
       {"Running the experts",
        joined({{option("--forward", "run the experts of both on the same tokens, too: no bit may differ",
                        flag(FIELD(verify.forward)))},
                activation_of_forward()})},
       compared_source(),
       second_source(),
       work(),
       general()}};
}

CommandTable diff_command() {
  return {"diff",
          "which tensors differ, and by how much; a line a layer, with -v a tensor. MAX ABS and RMS are of the whole "
          "layer, RELATIVE (|A - B| / |A|) and COSINE of what differs in it; the layer that differs most is first",
          cmd_diff,
          {"diff Qwen3-30B-A3B TUNED", "diff A B --tensors '*.layers.3.*' -v", "diff A B --json",
           "diff A B --html page.html"},
          {input("A"), required(second_input("B", "file or directory"))},
          {{"How much is compared",
            {option("--tensors GLOB", "only what fits a pattern by its name in A, in B or as reported",
                    text(FIELD(diff.tensors)))}},
           {"The page", {page(), overwrite_page()}},
           compared_source(),
           second_source(),
           work(),
           general()}};
}

CommandTable digest_command() {
  return {"digest",
          "one fingerprint, the same for every layout of the same weights",
          cmd_digest,
          {"digest Qwen3-30B-A3B", "digest RUN --from-glu contiguous", "digest A B >DIGESTS", "digest --check DIGESTS"},
          {inputs("files or directories; of several, a digest and a path a line")},
          {{"What is compared",
            {option("--check FILE",
                    "compare each path in FILE with the digest before it; `digest PATH... >FILE` writes such a file",
                    text(FIELD(check_file))),
             dropped_optimizer()}},
           source(),
           work(),
           general()}};
}

CommandTable check_command() {
  return {"check",
          "compare all of a checkpoint with its own record and checksums; without any, sizes and headers alone",
          [](const Options& options) { return for_each_path(options, cmd_check); },
          {"check OUT", "check OUT --json", "check OUT --manifest sha256"},
          {required(inputs("files or directories"))},
          {{"What is compared",
            {manifest("fail if this file is not there; one that is there is compared in any case"),
             option("--strict", "end with status 1 if nothing says what a file should hold, such as an added one",
                    flag(FIELD(strict)))}},
           work(),
           general()}};
}

CommandTable forward_command() {
  return {
      "forward",
      "run one layer's experts on given tokens",
      cmd_forward,
      {"forward OUT --layer 0 --input x.safetensors --output y.safetensors"},
      {input("CKPT")},
      {{"What is computed",
        joined(
            {{required(option("--layer N", "the layer, as `inspect` numbers it: 3, mtp.0", text(FIELD(forward.layer)))),
              required(option("--input FILE",
                              "safetensors file with x [T, H], index [T, top_k] I64 and weights [T, top_k]",
                              text(FIELD(forward.tokens)))),
              required(option("--output FILE", "safetensors file to write y [T, H] to", text(FIELD(forward.output)))),
              option("--overwrite", "replace the output file", flag(FIELD(forward.overwrite)))},
             activation()})},
       source(),
       {"Work", joined({jobs(),
                        max_memory("bytes of weights read at a time"),
                        {device("auto, which is cpu; cpu, cuda or cuda:N", {"auto", "cpu", "cuda", "cuda:0"}, "auto"),
                         device_memory("bytes of the buffers on a GPU")}})},
       general()}};
}

CommandTable bench_command() {
  std::vector<std::string> models;
  for (const ForwardShape& shape : forward_shapes()) models.push_back(shape.model);
  CommandTable convert = {
      "convert",
      "conversions beside a copy and a plain write of the same bytes",
      cmd_bench_convert,
      {"bench convert --dir /scratch --size 4GiB"},
      {},
      {general(joined({{option("--dir DIR", "where to write; nothing is left there", text(FIELD(bench.dir)), "here"),
                        option("--size SIZE", "bytes of the checkpoint that is converted",
                               size(FIELD(bench.size_bytes), 1), "1GiB")},
                       jobs(),
                       max_memory(),
                       json()}))}};
  CommandTable forward = {
      "forward",
      "the grouped MLP beside cuBLAS, a plain read of the weights and a dense product",
      cmd_bench_forward,
      {"bench forward --model Qwen3-30B --tokens 1,64", "bench forward --device cpu -j 8"},
      {},
      {general(joined(
          {{device("cuda, cuda:N or cpu", {"cuda", "cuda:0", "cpu"}, "cuda:0"),
            option("--model MODEL", "one shape alone", one_of(FIELD(bench.model), models), "all; on the CPU Qwen3-30B"),
            option("--tokens LIST", "per expert: 8, or 1,8,64", token_counts(),
                   "1,8,64,256,1024,4096; on the CPU 1,4,16"),
            option("--rounds N", "rounds at most", number<int>(FIELD(bench.rounds), 1, 1000), "11"),
            option("--backward", "all gradients too, on a GPU", flag(FIELD(bench.backward)))},
           jobs(),
           max_memory("bytes on the CPU; layers are cut to the experts that fit"),
           json()}))}};
  CommandTable kernels = {"kernels",
                          "the GPU's layout kernels beside cudaMemcpyAsync",
                          cmd_bench_kernels,
                          {"bench kernels --device cuda:1"},
                          {},
                          {general(joined({{device("cuda or cuda:N", {"cuda", "cuda:0"}, "cuda:0")}, json()}))}};
  return {"bench",
          "speeds, each beside this machine's own ceiling in the same run",
          nullptr,
          {"bench convert --dir /scratch --size 4GiB", "bench kernels", "bench forward --device cpu"},
          {},
          {general({})},
          {{"Commands", {kernels, forward, convert}}}};
}

CommandTable layouts_command() {
  return {"layouts",
          "the table of namings",
          cmd_layouts,
          {"layouts", "layouts qwen3", "layouts --json"},
          {option("WORD", "only those with it in their name, model types or programs", text(FIELD(input)))},
          {general(json())}};
}

CommandTable doctor_command() {
  return {"doctor",
          "device, filesystem and I/O paths in use, and why",
          cmd_doctor,
          {"doctor", "doctor /scratch --json"},
          {option("PATH", "where a checkpoint would be written", text(FIELD(input)), "here")},
          {general(joined({jobs(), json()}))}};
}

CommandTable help_command(const std::string& program) {
  return {"help",
          "the options of a command; the meaning of an option, a value or an error",
          nullptr,
          {"help convert", "help --pad-experts", "help megatron", "help unknown-glu", "help --man >" + program + ".1"},
          {many(option("WORD",
                       "a command, an option, a value, a role, a file, or the word in brackets at the end of an error; "
                       "none: the whole program",
                       {[](Options& options, const std::string& typed) {
                         options.paths.push_back(typed);
                         return std::string();
                       }}))},
          {general({option("--man", "the manual page of all commands, for `man -l`", flag(FIELD(manual))),
                    option("--page NAME", "a page of the documentation, in Markdown",
                           one_of(FIELD(page), {"cli", "errors"}))})}};
}

CommandTable completion_command(const std::string& program) {
  return {"completion",
          "a script that completes commands, options and values",
          nullptr,
          {"completion bash >/etc/bash_completion.d/" + program,
           "completion zsh >/usr/local/share/zsh/site-functions/_" + program,
           "completion fish >~/.config/fish/completions/" + program + ".fish"},
          {required(option("SHELL", "the shell", one_of(FIELD(shell), {"bash", "zsh", "fish"})))},
          {general({})}};
}

/// Marks the options that a command takes as `convert` does.
void mark_as_convert(CommandTable& program) {
  std::vector<OptionRow> known;
  for (const CommandTable* one : subcommands(program))
    if (one->name == "convert")
      for (const OptionRow* row : all_options(*one)) known.push_back(*row);
  const auto is_known = [&](const OptionRow& row) {
    return std::ranges::any_of(
        known, [&](const OptionRow& one) { return one.long_name == row.long_name && one.about == row.about; });
  };
  for (auto& [title, commands] : program.commands)
    for (CommandTable& one : commands) {
      if (one.name == "convert" || one.name == "plan") continue;
      for (OptionGroup& group : one.groups)
        for (OptionRow& row : group.options) row.as_convert = group.title != kGeneralOptions && is_known(row);
    }
}

/// Puts the name of the command above before those of the commands below.
void prefix_names(CommandTable& command) {
  for (auto& [title, commands] : command.commands)
    for (CommandTable& one : commands) {
      one.name = command.name + " " + one.name;
      prefix_names(one);
    }
}

}  // namespace

CommandTable command_table(const std::string& program) {
  CommandTable table = {
      program,
      "Converts checkpoints of Mixture-of-Experts and dense models between Hugging Face, Megatron-Core and torchtitan: "
      "whole models renamed and laid out anew, bit for bit, and compared with the source.",
      nullptr,
      {"inspect Qwen3-30B-A3B", "convert Qwen3-30B-A3B OUT --to megatron", "convert OUT BACK --to hf",
       "verify Qwen3-30B-A3B BACK"},
      {},
      {general({option("-V,--version", "print the version", {})})},
      {{"Look", {inspect_command(), report_command()}},
       {"Convert",
        {conversion(program, "plan", "say what convert would do; write nothing", cmd_plan, {}),
         conversion(program, "convert", "write DST in another layout, verified",
                    [](const Options& options) { return cmd_convert(options); },
                    {option("--dry-run", "same as plan", flag(FIELD(dry_run)))}),
         stamp_command()}},
       {"Compare", {verify_command(), diff_command(), digest_command(), check_command()}},
       {"This program", {layouts_command(), doctor_command(), help_command(program), completion_command(program)}},
       {"Compute and measure", {forward_command(), bench_command()}}}};
  std::vector<ValueWord> names;
  for (const CommandTable* one : subcommands(table)) names.push_back({one->name, "", false});
  for (auto& [title, commands] : table.commands)
    for (CommandTable& one : commands)
      if (one.name == "help") {
        for (const std::string& error : error_slugs()) names.push_back({error, "", false});
        one.arguments.front().words = names;
      }
  mark_as_convert(table);
  prefix_names(table);
  return table;
}

}  // namespace glu_ckpt::cli
