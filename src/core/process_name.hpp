#pragma once
/// Names a process among those of all hosts.

#include <string>

namespace glu_ckpt {

/// `boot` and `space` (the namespace of process numbers) say within what `process` and `ticks` name one process.
struct ProcessName {
  std::string host, boot, space, process, ticks;
};

ProcessName name_this_process();

/// Returns when a process began, in ticks since the boot; nothing where it does not live here. A number is given anew
/// after its process has ended, with another start.
std::string start_of_process(const std::string& process);

}  // namespace glu_ckpt
