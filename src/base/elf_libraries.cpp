// SPDX-License-Identifier: Apache-2.0
// Reads the dynamic section of ELF files.
#include "base/elf_libraries.hpp"

#include <elf.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>

namespace checkop {
namespace {

namespace fs = std::filesystem;

struct Dynamic {
  std::vector<std::string> needed;
  std::string search;  ///< RPATH or RUNPATH: folders with ':' between
};

class ElfFile {
 public:
  explicit ElfFile(const std::string& path) : file_(path, std::ios::binary) {}

  /// Empty if the file has no dynamic section that can be read.
  Dynamic dynamic() {
    Elf64_Ehdr header{};
    if (!read(0, header) || std::string_view(reinterpret_cast<char*>(header.e_ident), SELFMAG) != ELFMAG ||
        header.e_ident[EI_CLASS] != ELFCLASS64) {
      return {};
    }
    Elf64_Phdr dynamic{};
    for (uint64_t i = 0; i < header.e_phnum; ++i) {
      Elf64_Phdr part{};
      if (!read(header.e_phoff + i * header.e_phentsize, part)) return {};
      if (part.p_type == PT_LOAD) loads_.push_back(part);
      if (part.p_type == PT_DYNAMIC) dynamic = part;
    }
    std::vector<Elf64_Dyn> entries;
    for (uint64_t at = 0; at < dynamic.p_filesz; at += sizeof(Elf64_Dyn)) {
      Elf64_Dyn entry{};
      if (!read(dynamic.p_offset + at, entry) || entry.d_tag == DT_NULL) break;
      entries.push_back(entry);
    }
    uint64_t names = 0;
    for (const Elf64_Dyn& entry : entries)
      if (entry.d_tag == DT_STRTAB) names = offset_of(entry.d_un.d_ptr);
    Dynamic found;
    for (const Elf64_Dyn& entry : entries) {
      if (entry.d_tag == DT_NEEDED) found.needed.push_back(text(names + entry.d_un.d_val));
      if (entry.d_tag == DT_RPATH || entry.d_tag == DT_RUNPATH) found.search = text(names + entry.d_un.d_val);
    }
    return found;
  }

 private:
  template <class T>
  bool read(uint64_t at, T& to) {
    file_.clear();
    return static_cast<bool>(file_.seekg(static_cast<std::streamoff>(at))) &&
           static_cast<bool>(file_.read(reinterpret_cast<char*>(&to), sizeof to));
  }
  std::string text(uint64_t at) {
    std::string text;
    file_.clear();
    if (file_.seekg(static_cast<std::streamoff>(at))) std::getline(file_, text, '\0');
    return text;
  }
  uint64_t offset_of(uint64_t address) const {
    for (const Elf64_Phdr& part : loads_)
      if (address >= part.p_vaddr && address < part.p_vaddr + part.p_filesz)
        return address - part.p_vaddr + part.p_offset;
    return 0;
  }

  std::ifstream file_;
  std::vector<Elf64_Phdr> loads_;
};

/// The folders of a list with ':' between, `origin` in place of $ORIGIN.
std::vector<std::string> folders_of(const std::string& list, const std::string& origin) {
  std::vector<std::string> folders;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ':');) {
    for (const std::string_view name : {"${ORIGIN}", "$ORIGIN"}) {
      if (const size_t at = part.find(name); at != std::string::npos) part.replace(at, name.size(), origin);
    }
    if (!part.empty()) folders.push_back(part);
  }
  return folders;
}

bool is_of_system(const fs::path& folder) {
  const std::string path = folder.lexically_normal().string();
  return path.starts_with("/usr/") || path.starts_with("/lib") || path.starts_with("/opt/");
}

/// Whether it is a regular file that begins as ELF files do. What a library says that it needs may be any path, and
/// nothing else must become readable.
bool is_elf(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  std::array<char, SELFMAG> begin{};
  std::ifstream(path, std::ios::binary).read(begin.data(), begin.size());
  return std::memcmp(begin.data(), ELFMAG, SELFMAG) == 0;
}

/// "libx.so", "libx.so.1.2"
bool is_library_name(const std::string& name) {
  const size_t at = name.rfind(".so");
  return at != std::string::npos && name.find_first_not_of("0123456789.", at + 3) == std::string::npos;
}

class Search {
 public:
  void enter(const std::string& path) {
    std::error_code error;
    const fs::path file = fs::absolute(path, error);
    if (!seen_.insert(file.string()).second) return;
    files_.insert(file.string());
    const std::string origin = file.parent_path().string();
    const Dynamic dynamic = ElfFile(file.string()).dynamic();
    std::vector<std::string> folders = folders_of(dynamic.search, origin);
    if (const char* const more = std::getenv("LD_LIBRARY_PATH"))
      for (const std::string& folder : folders_of(more, origin)) folders.push_back(folder);
    add_folder(origin);
    for (const std::string& folder : folders) {
      add_folder(folder);
      for (const std::string& name : dynamic.needed) {
        const fs::path library = fs::path(folder) / name;
        if (!is_of_system(folder) && is_elf(library)) enter(library.string());
      }
    }
  }

  std::vector<std::string> files() const { return {files_.begin(), files_.end()}; }

 private:
  void add_folder(const std::string& folder) {
    if (is_of_system(folder) || !folders_.insert(folder).second) return;
    std::error_code error;
    for (const fs::directory_entry& each : fs::directory_iterator(folder, error))
      if (is_library_name(each.path().filename().string()) && is_elf(each.path())) files_.insert(each.path().string());
  }

  std::set<std::string> seen_, folders_, files_;
};

}  // namespace

std::vector<std::string> libraries_of(const std::string& path) {
  Search search;
  search.enter(path);
  return search.files();
}

}  // namespace checkop
