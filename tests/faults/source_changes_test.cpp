/// A source that changes while it is converted is noticed, whatever the formats are: exit status 3, and nothing is
/// left.

#include <fcntl.h>
#include <gtest/gtest.h>

#include "faults/fault_bench.hpp"
#include "glu_ckpt/convert.hpp"
#include "glu_ckpt/error.hpp"

namespace glu_ckpt::faults {
namespace {

ConvertOptions options_to(Format format, const char* glu) {
  ConvertOptions options;
  options.format = format;
  options.to.naming = format == Format::TorchDist ? "megatron-dist" : "megatron";
  options.to.scope = Scope::Experts;
  options.to.experts = Experts::Grouped;
  options.to.glu = parse_glu(glu);
  return options;
}

Outcome convert_in(MemorySystem& memory, const ConvertOptions& options, const std::string& output) {
  RunOptions run;
  run.memory_bytes = i64{1} << 20;
  run.jobs = 2;
  run.device = "cpu";
  const SystemCallsScope scope(memory);
  try {
    (void)convert("/src", output, options, run);
    return {};
  } catch (const Error& error) {
    return {exit_status(error.code()), std::string(slug(error.code())), error.what()};
  }
}

Tree files_below(const MemorySystem& memory, const std::string& path) {
  Tree files;
  for (const std::string& name : memory.tree(path))
    if (!name.ends_with('/')) files[name] = memory.get((std::filesystem::path(path) / name).string()).value();
  return files;
}

void put_source(MemorySystem& memory, const Tree& source) {
  for (const auto& [name, content] : source) memory.put("/src/" + name, content);
  memory.put("/disk/other", "");
}

/// The same model in every format.
const Tree& source_in(Format format) {
  static const std::map<Format, Tree> kSources = [] {
    std::map<Format, Tree> sources;
    for (const Format to : {Format::Safetensors, Format::Torch, Format::TorchDist}) {
      MemorySystem memory;
      put_source(memory, make_source());
      const Outcome outcome = convert_in(memory, options_to(to, "interleaved:32"), "/disk/out");
      EXPECT_EQ(outcome.status, ExitStatus::Done) << outcome.message;
      sources[to] = files_below(memory, "/disk/out");
    }
    return sources;
  }();
  return kSources.at(format);
}

/// The largest file of tensors.
std::string tensor_file(const Tree& source) {
  std::string largest;
  for (const auto& [name, content] : source)
    if (largest.empty() || content.size() > source.at(largest).size()) largest = name;
  return "/src/" + largest;
}

/// Changes one byte in place, and so the date of the file.
void write_byte(MemorySystem& memory, const std::string& path) {
  const int file = memory.open(path.c_str(), O_RDWR, 0);
  char byte = 0;
  const i64 at = std::ssize(memory.get(path).value()) / 2;
  EXPECT_EQ(memory.pread(file, &byte, 1, at), 1);
  byte = static_cast<char>(byte ^ 1);
  EXPECT_EQ(memory.pwrite(file, &byte, 1, at), 1);
  EXPECT_EQ(memory.close(file), 0);
}

struct Change {
  const char* name;
  void (*make)(MemorySystem& memory, const Tree& source);
};

constexpr Change kChanges[] = {
    {"a byte is written", [](MemorySystem& memory, const Tree& source) { write_byte(memory, tensor_file(source)); }},
    {"the file is replaced by the same bytes",
     [](MemorySystem& memory, const Tree& source) {
       const std::string path = tensor_file(source);
       memory.put(path, memory.get(path).value());
     }},
    {"config.json changes",
     [](MemorySystem& memory, const Tree&) {
       memory.put("/src/config.json", memory.get("/src/config.json").value() + " ");
     }},
};

class SourceChanges : public testing::TestWithParam<std::tuple<Format, Format>> {};

TEST_P(SourceChanges, AreSeenFromOpeningToCommit) {
  const auto [from, to] = GetParam();
  const Tree& source = source_in(from);
  const ConvertOptions options = options_to(to, "contiguous");
  MemorySystem undisturbed;
  put_source(undisturbed, source);
  undisturbed.reset();
  const Outcome whole = convert_in(undisturbed, options, "/disk/out");
  ASSERT_EQ(whole.status, ExitStatus::Done) << whole.message;
  const i64 writes = undisturbed.calls(CallKind::Write);
  for (const Change& change : kChanges)
    for (const i64 number : {i64{1}, writes / 2, writes}) {
      SCOPED_TRACE(testing::Message() << change.name << " before write " << number << " of " << writes);
      MemorySystem memory;
      put_source(memory, source);
      memory.reset();
      memory.before(CallKind::Write, number, [&] { change.make(memory, source); });
      const Outcome outcome = convert_in(memory, options, "/disk/out");
      EXPECT_EQ(outcome.status, ExitStatus::BrokenInput) << outcome.message;
      EXPECT_EQ(outcome.slug, "source-changed") << outcome.message;
      EXPECT_EQ(memory.tree("/disk"), std::vector<std::string>{"other"});
      EXPECT_EQ(memory.open_descriptors(), 0);
    }
}

constexpr Format kFormats[] = {Format::Safetensors, Format::Torch, Format::TorchDist};
INSTANTIATE_TEST_SUITE_P(Of, SourceChanges, testing::Combine(testing::ValuesIn(kFormats), testing::ValuesIn(kFormats)),
                         [](const auto& pair) {
                           std::string name = std::string(to_string(std::get<0>(pair.param))) + "To" +
                                              std::string(to_string(std::get<1>(pair.param)));
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace glu_ckpt::faults
