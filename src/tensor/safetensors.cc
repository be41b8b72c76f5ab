#include "tensor/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>

#include "tensor/printable.h"
#include "tensor/safetensors_header.h"

namespace quire {
namespace {

constexpr std::uint64_t kHeaderBytesMax = 100'000'000;  // as the format says
constexpr std::uint64_t kFolderTensorsMax = 65'536;     // of a folder

struct NamedType {
  std::string_view name;
  DType type;
};
constexpr NamedType kNamedTypes[] = {
    {"F32", DType::f32}, {"F16", DType::f16}, {"BF16", DType::bf16}};

template <class Named>
const Named* find_named(const std::vector<Named>& sorted, std::string_view name) {
  const auto at = std::lower_bound(sorted.begin(), sorted.end(), name,
                                   [](const Named& a, std::string_view b) { return a.name < b; });
  return at != sorted.end() && at->name == name ? &*at : nullptr;
}

Status check_size(const TensorClaim& claim, const DTypeInfo& info) {
  std::uint64_t size = info.block_bytes;
  for (const std::uint64_t extent : claim.shape) {
    if (extent == 0) return Error{Code::corrupt, "has a dimension of 0"};
    if (__builtin_mul_overflow(size, extent, &size))
      return Error{Code::corrupt, "has an impossible shape"};
  }
  if (claim.end - claim.begin != size)
    return Error{Code::corrupt,
                 fmt::format("of type {} and shape [{}] has {} bytes, {} are needed", info.name,
                             fmt::join(claim.shape, ", "), claim.end - claim.begin, size)};
  return {};
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::parse(std::span<const std::byte> bytes,
                                               const std::string& name) {
  const auto bad = [&](std::string_view message) {
    return Error{Code::corrupt, fmt::format("{}: {}", name, message)};
  };
  std::uint64_t length;
  if (bytes.size() < sizeof length) return bad("is too short for a safetensors file");
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > bytes.size() - sizeof length || length > kHeaderBytesMax)
    return bad(fmt::format("claims a header of {} bytes in a file of {}; is the download complete?",
                           length, bytes.size()));
  const auto data = bytes.subspan(sizeof length + length);
  auto header = read_safetensors_header(
      {reinterpret_cast<const char*>(bytes.data() + sizeof length), length});
  if (!header.ok()) return bad(header.error().message);

  std::vector<TensorClaim>& claims = header.value();
  const auto by_name = [](const auto& x, const auto& y) { return x.name < y.name; };
  std::sort(claims.begin(), claims.end(), by_name);
  const auto twice = std::adjacent_find(
      claims.begin(), claims.end(), [](const auto& x, const auto& y) { return x.name == y.name; });
  if (twice != claims.end())
    return bad(fmt::format("tensor {} appears twice", printable(twice->name)));

  SafetensorsFile file;
  file.name_ = name;
  std::sort(claims.begin(), claims.end(),
            [](const auto& x, const auto& y) { return x.begin < y.begin; });
  std::uint64_t end = 0;
  for (TensorClaim& claim : claims) {
    const std::string what = "tensor " + printable(claim.name);
    if (claim.begin > claim.end || claim.end > data.size())
      return bad(fmt::format("{} lies at {} to {} of {} bytes of data; is the download complete?",
                             what, claim.begin, claim.end, data.size()));
    if (claim.begin < end) return bad(what + " overlaps another");
    end = claim.end;
    const auto known = std::find_if(std::begin(kNamedTypes), std::end(kNamedTypes),
                                    [&](const NamedType& t) { return t.name == claim.type; });
    if (known == std::end(kNamedTypes)) {
      file.foreign_.push_back({std::move(claim.name), std::move(claim.type)});
      continue;
    }
    if (const Status size = check_size(claim, dtype_info(known->type)); !size.ok())
      return bad(what + " " + size.error().message);
    file.tensors_.push_back({std::move(claim.name), known->type, std::move(claim.shape),
                             data.subspan(claim.begin, claim.end - claim.begin)});
  }
  std::sort(file.tensors_.begin(), file.tensors_.end(), by_name);
  std::sort(file.foreign_.begin(), file.foreign_.end(), by_name);
  return file;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  TRY(MappedFile mapped, MappedFile::open(path));
  TRY(SafetensorsFile file, parse(mapped.bytes(), path));
  file.file_ = std::move(mapped);
  return file;
}

const SafetensorsFile::Foreign* SafetensorsFile::foreign(std::string_view tensor) const {
  return find_named(foreign_, tensor);
}

bool SafetensorsFile::has(std::string_view tensor) const {
  return find_named(tensors_, tensor) || foreign(tensor);
}

Result<const TensorView*> SafetensorsFile::tensor(std::string_view name) const {
  if (const TensorView* found = find_named(tensors_, name)) return found;
  if (const Foreign* other = foreign(name))
    return Error{Code::unsupported,
                 fmt::format("{}: tensor '{}' is of type {}; F32, F16 and BF16 are supported",
                             name_, name, printable(other->type))};
  return Error{Code::not_found, fmt::format("{}: tensor '{}' is missing", name_, name)};
}

Status SafetensorsFile::check_types() const {
  if (foreign_.empty()) return {};
  return tensor(foreign_.front().name).error();
}

bool SafetensorsFile::holds(std::span<const std::byte> part) const {
  const auto all = file_.bytes();
  const std::less_equal<const std::byte*> not_after;
  return !all.empty() && not_after(all.data(), part.data()) &&
         not_after(part.data() + part.size(), all.data() + all.size());
}

void SafetensorsFile::drop_pages(std::span<const std::byte> part) const {
  if (holds(part)) file_.drop_pages(part);
}

Result<SafetensorsFolder> SafetensorsFolder::open(const std::string& folder) {
  namespace fs = std::filesystem;
  SafetensorsFolder set;
  set.folder_ = folder;
  std::vector<std::string> names{"model.safetensors"};
  const std::string index = (fs::path(folder) / "model.safetensors.index.json").string();
  std::error_code ignored;
  if (fs::exists(index, ignored)) {
    TRY(const MappedFile text, MappedFile::open(index));
    const auto bytes = text.bytes();
    if (bytes.size() > kHeaderBytesMax)
      return Error{Code::corrupt, fmt::format("{}: is too large ({} bytes)", index, bytes.size())};
    TRY(names, shards_of_index({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, index));
  }
  std::uint64_t tensor_count = 0;
  for (const std::string& name : names) {
    TRY(SafetensorsFile file, SafetensorsFile::open((fs::path(folder) / name).string()));
    tensor_count += file.tensors().size();
    if (tensor_count > kFolderTensorsMax)
      return Error{Code::corrupt,
                   fmt::format("{}: has more than {} tensors", folder, kFolderTensorsMax)};
    for (const TensorView& tensor : file.tensors())
      if (const SafetensorsFile* other = set.holder(tensor.name))
        return Error{Code::corrupt, fmt::format("{}: tensor {} is in {} too", file.name(),
                                                printable(tensor.name), other->name())};
    set.files_.push_back(std::move(file));
  }
  return set;
}

const SafetensorsFile* SafetensorsFolder::holder(std::string_view tensor) const {
  for (const SafetensorsFile& file : files_)
    if (file.has(tensor)) return &file;
  return nullptr;
}

bool SafetensorsFolder::has(std::string_view tensor) const { return holder(tensor) != nullptr; }

Result<const TensorView*> SafetensorsFolder::tensor(std::string_view name) const {
  if (const SafetensorsFile* file = holder(name)) return file->tensor(name);
  return Error{Code::not_found, fmt::format("{}: tensor '{}' is missing", folder_, name)};
}

void SafetensorsFolder::drop_pages(const TensorView& tensor) const {
  for (const SafetensorsFile& file : files_) file.drop_pages(tensor.data);
}

void SafetensorsFolder::detach() {
  for (SafetensorsFile& file : files_) file.detach();
}

}  // namespace quire
