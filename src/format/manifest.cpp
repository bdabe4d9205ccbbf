#include "format/manifest.hpp"

#include <algorithm>
#include <set>

#include "core/parallel.hpp"
#include "format/inner_path.hpp"
#include "format/output_format.hpp"
#include "io/directory.hpp"
#include "io/file.hpp"
#include "io/staged_dir.hpp"

namespace glu_ckpt {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kShaDigits = 64;
constexpr i64 kMaxManifestBytes = i64{1} << 30;

void add_names(const fs::path& directory, const std::string& prefix, std::vector<std::string>& names) {
  for (const std::string& name : list_directory(directory)) {
    if (link_kind(directory / name) == PathKind::Directory)
      add_names(directory / name, prefix + name + "/", names);
    else if (is_file(directory / name))
      names.push_back(prefix + name);
  }
}

/// Writes a line as sha256sum does: a line whose name holds one of these begins with a backslash.
std::string manifest_line(const std::string& hash, const std::string& name) {
  if (name.find_first_of("\\\n\r") == std::string::npos) return hash + "  " + name + "\n";
  std::string escaped;
  for (const char c : name) escaped += c == '\\' ? "\\\\" : c == '\n' ? "\\n" : c == '\r' ? "\\r" : std::string(1, c);
  return "\\" + hash + "  " + escaped + "\n";
}

std::string unescaped(std::string_view name) {
  std::string text;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] != '\\' || i + 1 == name.size()) {
      text += name[i];
      continue;
    }
    const char next = name[++i];
    text += next == 'n' ? '\n' : next == 'r' ? '\r' : next;
  }
  return text;
}

CheckedFile check_line(const fs::path& root, const ManifestLine& line) {
  const fs::path path = root / line.name;
  if (path_kind(path) == PathKind::Missing) return {line.name, FileState::Missing, "is not there"};
  const bool same = sha256_of_file(path) == line.sha256;
  return {line.name, same ? FileState::Ok : FileState::Differs, same ? "SHA-256" : "its SHA-256 is another one"};
}

}  // namespace

bool has_hidden_part(const fs::path& path) {
  return path.filename() != ".metadata" &&
         std::ranges::any_of(path, [](const fs::path& part) { return part.native().starts_with('.'); });
}

std::vector<std::string> manifest_names(const fs::path& root) {
  std::vector<std::string> names;
  add_names(root, "", names);
  std::erase_if(names,
                [](const std::string& name) { return name == kManifestFileName || StagedDir::is_journal(name); });
  std::ranges::sort(names);
  return names;
}

i64 manifest_bytes(const fs::path& root, const std::vector<std::string>& names) {
  i64 bytes = 0;
  for (const std::string& name : names) bytes += File::open_read(root / name).size();
  return bytes;
}

std::string print_manifest(const fs::path& root, const std::function<void(i64)>& on_progress) {
  const std::vector<std::string> names = manifest_names(root);
  std::vector<std::string> hashes(names.size());
  parallel_for(names.size(), kFileThreads, [&](std::size_t i, int) {
    hashes[i] = sha256_of_file(root / names[i]);
    if (on_progress) on_progress(File::open_read(root / names[i]).size());
  });
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) text += manifest_line(hashes[i], names[i]);
  return text;
}

std::vector<ManifestLine> parse_manifest(std::string_view text, const InputPart& part) {
  std::vector<ManifestLine> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const bool escaped = line.starts_with('\\');
    if (escaped) line.remove_prefix(1);
    const bool has_hash = line.size() > kShaDigits + 2 &&
                          line.substr(0, kShaDigits).find_first_not_of("0123456789abcdef") == std::string_view::npos;
    // Two blanks, or a blank and a star for binary.
    if (!has_hash || line[kShaDigits] != ' ' || (line[kShaDigits + 1] != ' ' && line[kShaDigits + 1] != '*'))
      fail_at(ErrorCode::RecordInvalid, {part, std::nullopt},
              "line {} is not a SHA-256 and the name of a file, as sha256sum prints them", lines.size() + 1);
    const std::string_view name = line.substr(kShaDigits + 2);
    lines.push_back({std::string(line.substr(0, kShaDigits)), escaped ? unescaped(name) : std::string(name)});
    if (const std::string fault = inner_path_fault(lines.back().name); !fault.empty())
      fail_at(ErrorCode::RecordInvalid, {part, std::nullopt}, "line {} names '{}', {}", lines.size(), lines.back().name,
              fault);
  }
  return lines;
}

std::vector<CheckedFile> check_manifest(const fs::path& root, ManifestUse use,
                                        const std::function<void(i64)>& on_progress) {
  const std::string path = (root / kManifestFileName).string();
  const std::vector<ManifestLine> lines =
      parse_manifest(read_small_file(path, kMaxManifestBytes, ErrorCode::RecordInvalid), InputPart(path));
  std::vector<CheckedFile> checked(lines.size());
  parallel_for(lines.size(), kFileThreads, [&](std::size_t i, int) {
    checked[i] = check_line(root, lines[i]);
    if (on_progress && is_file(root / lines[i].name)) on_progress(File::open_read(root / lines[i].name).size());
  });
  std::set<std::string_view> listed;
  for (const ManifestLine& line : lines) listed.insert(line.name);
  for (const std::string& name : manifest_names(root))
    if (!listed.contains(name))
      checked.push_back(
          {name, use == ManifestUse::Required && !has_hidden_part(name) ? FileState::Unlisted : FileState::NoChecksum,
           fmt::format("is not in {}", kManifestFileName)});
  return checked;
}

}  // namespace glu_ckpt
