#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>

#include "cli/session.hpp"
#include "core/json.hpp"
#include "glu_ckpt/check.hpp"
#include "report/report.hpp"

namespace glu_ckpt::cli {
namespace {

/// Words for FileState, in its order.
constexpr std::array<std::string_view, 5> kStateWords = {"ok", "differs", "missing", "no checksum recorded",
                                                         "not listed"};

std::string_view state_word(FileState state) { return kStateWords[static_cast<std::size_t>(state)]; }

std::string_view outcome_word(const CheckedCheckpoint& found, bool ok) {
  if (!found.is_ok()) return "damaged";
  if (!found.has_anything()) return "not compared";
  return ok ? "ok" : "not all compared";
}

/// The files of both lists, one of a name: what glu_ckpt.sha256 says where nothing else says something of it, or where
/// it finds a fault.
std::vector<CheckedFile> in_one_list(const CheckedCheckpoint& found) {
  std::vector<CheckedFile> files = found.files;
  for (const CheckedFile& listed : found.manifest) {
    const auto there = std::ranges::find(files, listed.name, &CheckedFile::name);
    if (there == files.end())
      files.push_back(listed);
    else if (there->state == FileState::NoChecksum || (there->state == FileState::Ok && listed.state != FileState::Ok))
      *there = listed;
  }
  return files;
}

/// Without `says_ok` the lines of sound files are left out.
std::string check_text(const CheckedCheckpoint& found, const std::string& path, bool says_ok, bool ok) {
  std::string text;
  std::array<int, kStateWords.size()> counts{};
  for (const CheckedFile& file : in_one_list(found)) {
    if (says_ok || file.state != FileState::Ok)
      text += fmt::format("{}: {} ({})\n", report::printable(file.name), state_word(file.state), file.detail);
    ++counts[static_cast<std::size_t>(file.state)];
  }
  if (found.has_manifest)
    text += fmt::format("glu_ckpt.sha256: {} of {} files ok\n",
                        std::ranges::count(found.manifest, FileState::Ok, &CheckedFile::state), found.manifest.size());
  if (found.digest)
    text +=
        fmt::format("digest: {} ({} recorded, {} found)\n", found.digest == found.recorded_digest ? "ok" : "differs",
                    *found.recorded_digest, *found.digest);
  const std::string name = report::printable(path);
  text += fmt::format("{}: {}: {} files ok, {} differ, {} missing, {} without a checksum\n", name,
                      outcome_word(found, ok), counts[0], counts[1], counts[2], counts[3]);
  if (found.has_checksums || !found.is_sound) return text;
  if (!found.has_anything())
    return text + fmt::format(
                      "{0}: no checksums are recorded, so only sizes and headers were checked, and no data; "
                      "--strict makes that status 1. `glu-ckpt verify hf://ORG/NAME {0}` compares a download "
                      "with the hub; `glu-ckpt digest {0} >LIST` notes what it holds now, and `glu-ckpt digest "
                      "--check LIST` compares it later\n",
                      name);
  std::vector<std::string_view> compared;
  if (found.has_own_checksums) compared.emplace_back("the checksums that its format has");
  if (found.digest) compared.emplace_back("the recorded digest");
  if (found.has_manifest) compared.emplace_back("glu_ckpt.sha256");
  return text + fmt::format("{}: no checksums of its files are recorded; its data were compared with {}\n", name,
                            fmt::join(compared, " and "));
}

std::string check_json(const CheckedCheckpoint& found, bool ok) {
  JsonWriter json;
  json.begin_object().field("ok", ok).field("compared_data", found.has_anything());
  json.field("has_checksums", found.has_checksums);
  json.field("sound", found.is_sound).field("has_manifest", found.has_manifest);
  for (const auto& [name, files] : {std::pair("files", &found.files), std::pair("manifest", &found.manifest)}) {
    json.key(name).begin_array();
    for (const CheckedFile& file : *files)
      json.begin_object()
          .field("name", file.name)
          .field("state", state_word(file.state))
          .field("detail", file.detail)
          .end_object();
    json.end_array();
  }
  const auto digest = [&](std::string_view name, const std::optional<std::string>& text) {
    json.key(name);
    if (text)
      json.value(*text);
    else
      json.null();
  };
  digest("recorded_digest", found.recorded_digest);
  digest("digest", found.digest);
  return json.end_object().text() + "\n";
}

}  // namespace

ExitStatus cmd_check(const Options& options) {
  const CheckedCheckpoint found =
      check(options.input, Session(options).run(),
            options.convert.sha256_manifest ? ManifestUse::Required : ManifestUse::Optional);
  const bool ok = found.is_ok() && (found.has_everything() || !options.strict);
  if (options.json)
    print_out(options, check_json(found, ok));
  else if (!options.quiet || !ok)
    print_out(options, check_text(found, options.input, !options.quiet, ok));
  return ok ? ExitStatus::Done : ExitStatus::Differs;
}

}  // namespace glu_ckpt::cli
