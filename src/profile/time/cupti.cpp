#include "profile/time/cupti.h"

#include <utility>

#include "base/error.h"

#if defined(QUERN_WITH_CUDA) && __has_include(<cupti.h>)

#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "profile/time/kernel_ranges.h"

namespace quern {

namespace {

constexpr size_t kBufferBytes = size_t{4} << 20;  // about 15,000 kernels
constexpr size_t kAlignment = 8;                  // as CUPTI requires
constexpr uint32_t kForced = CUPTI_ACTIVITY_FLAG_FLUSH_FORCED;
constexpr std::array kKinds{CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                            CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_RUNTIME,
                            CUPTI_ACTIVITY_KIND_DRIVER};
constexpr std::array kNodeCallbacks{CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED,
                                    CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED};

struct Buffer {
  uint8_t* data = nullptr;
  size_t bytes = 0;  // filled
};

// CUPTI's threads take buffers from here and return them filled. Its callbacks carry no argument,
// so this is a global. It is never destroyed, since CUPTI may call until the process ends.
struct Buffers {
  std::mutex mutex;
  std::vector<uint8_t*> idle;
  std::vector<Buffer> filled;
  bool taken = false;  // by a Cupti

  static Buffers& instance() {
    static auto* const buffers = new Buffers;
    return *buffers;
  }
};

void CUPTIAPI give_buffer(uint8_t** data, size_t* bytes, size_t* most_records) {
  Buffers& buffers = Buffers::instance();
  const std::lock_guard lock(buffers.mutex);
  *most_records = 0;  // as many as fit
  *bytes = kBufferBytes;
  if (buffers.idle.empty()) {
    *data = static_cast<uint8_t*>(std::aligned_alloc(kAlignment, kBufferBytes));
    return;
  }
  *data = buffers.idle.back();
  buffers.idle.pop_back();
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* data, size_t, size_t valid) {
  Buffers& buffers = Buffers::instance();
  const std::lock_guard lock(buffers.mutex);
  buffers.filled.push_back({data, valid});
}

uint64_t CUPTIAPI timestamp() {
  return static_cast<uint64_t>(profile_clock());
}

const char* copy_name(uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD: return "copy host to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH: return "copy device to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD: return "copy device to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOH: return "copy host to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP: return "copy between devices";
    default: return "copy";
  }
}

std::string demangled(const char* mangled) {
  int status = 0;
  char* const text = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
  const std::string name = status == 0 ? text : mangled;
  std::free(text);
  return name;
}

// The contents of the filled buffers.
struct Records {
  std::vector<ApiRecord> calls;
  std::vector<DeviceRecord> events;
  std::unordered_map<const char*, std::string> kernels;  // demangled; CUPTI has one string each
  size_t untimed = 0;

  template <class Record>
  void add(const Record& record, DeviceEventKind kind, const std::string& name, int64_t bytes) {
    if (record.start == 0 || record.end == 0) {  // CUPTI's mark of a record without times
      ++untimed;
      return;
    }
    const DeviceEvent event{.kind = kind,
                            .stream = static_cast<int32_t>(record.streamId),
                            .begin = static_cast<int64_t>(record.start),
                            .end = static_cast<int64_t>(record.end),
                            .bytes = bytes,
                            .correlation = record.correlationId};
    events.push_back({event, name, record.graphNodeId});
  }

  // Adds a copy, a set or a kernel; ignores other records.
  void add_device(const CUpti_Activity* at) {
    switch (at->kind) {
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      case CUPTI_ACTIVITY_KIND_KERNEL: {
        const auto& kernel = *reinterpret_cast<const CUpti_ActivityKernel10*>(at);
        const auto [name, added] = kernels.emplace(kernel.name, "");
        if (added) name->second = demangled(kernel.name);
        return add(kernel, DeviceEventKind::kernel, name->second, 0);
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const auto& copy = *reinterpret_cast<const CUpti_ActivityMemcpy6*>(at);
        return add(copy, DeviceEventKind::copy, copy_name(copy.copyKind),
                   static_cast<int64_t>(copy.bytes));
      }
      case CUPTI_ACTIVITY_KIND_MEMSET: {
        const auto& set = *reinterpret_cast<const CUpti_ActivityMemset4*>(at);
        return add(set, DeviceEventKind::set, "set", static_cast<int64_t>(set.bytes));
      }
      default: return;  // requested by other CUPTI clients
    }
  }

  void add_call(const CUpti_ActivityAPI& call, const char* name, bool other_thread) {
    calls.push_back({name ? name : "CUDA call", static_cast<int64_t>(call.start),
                     static_cast<int64_t>(call.end), call.correlationId, other_thread});
  }
};

}  // namespace

// The functions used from the loaded library.
struct Cupti::Library {
  void* handle = nullptr;
  decltype(&cuptiActivityRegisterCallbacks) register_buffers = nullptr;
  decltype(&cuptiActivityRegisterTimestampCallback) register_timestamp = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) dropped = nullptr;
  decltype(&cuptiSetThreadIdType) thread_id_type = nullptr;
  decltype(&cuptiSubscribe) subscribe = nullptr;
  decltype(&cuptiUnsubscribe) unsubscribe = nullptr;
  decltype(&cuptiEnableCallback) enable_callback = nullptr;
  decltype(&cuptiGetCallbackName) callback_name = nullptr;
  decltype(&cuptiGetGraphNodeId) node_id = nullptr;
  decltype(&cuptiGetResultString) result_string = nullptr;

  // Never unloaded: CUPTI's threads may still run. Returns the reason for a failure, else "".
  std::string load(const std::string& path);
  std::string text(CUptiResult result) const;
};

std::string Cupti::Library::load(const std::string& path) {
  std::vector<std::string> paths{path};
  if (path == "auto") {
    paths = {"libcupti.so.13", "libcupti.so", QUERN_CUDA_LIBRARIES "/libcupti.so.13",
             QUERN_CUDA_LIBRARIES "/../extras/CUPTI/lib64/libcupti.so.13"};
  }
  for (size_t i = 0; i < paths.size() && !handle; ++i) {
    handle = dlopen(paths[i].c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (!handle) return cat(path == "auto" ? "libcupti.so.13" : path, " was not found");
  const char* missing = nullptr;
  const auto find = [&]<class F>(F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(handle, name));
    if (!function) missing = name;
  };
  find(register_buffers, "cuptiActivityRegisterCallbacks");
  find(register_timestamp, "cuptiActivityRegisterTimestampCallback");
  find(enable, "cuptiActivityEnable");
  find(disable, "cuptiActivityDisable");
  find(flush, "cuptiActivityFlushAll");
  find(next_record, "cuptiActivityGetNextRecord");
  find(dropped, "cuptiActivityGetNumDroppedRecords");
  find(thread_id_type, "cuptiSetThreadIdType");
  find(subscribe, "cuptiSubscribe");
  find(unsubscribe, "cuptiUnsubscribe");
  find(enable_callback, "cuptiEnableCallback");
  find(callback_name, "cuptiGetCallbackName");
  find(node_id, "cuptiGetGraphNodeId");
  find(result_string, "cuptiGetResultString");
  return missing ? cat("the library has no ", missing) : "";
}

std::string Cupti::Library::text(CUptiResult result) const {
  const char* name = nullptr;
  if (result_string(result, &name) != CUPTI_SUCCESS || !name) return cat("error ", result);
  return name;
}

Cupti::Cupti(std::function<int32_t()> open_range)
    : library_(std::make_unique<Library>()), open_range_(std::move(open_range)) {}

std::unique_ptr<Cupti> Cupti::start(const std::string& library, std::function<int32_t()> open_range,
                                    std::string& reason) {
  std::unique_ptr<Cupti> cupti(new Cupti(std::move(open_range)));
  reason = cupti->library_->load(library);
  if (reason.empty()) reason = cupti->enable();
  if (!reason.empty()) return nullptr;
  return cupti;
}

// The subscription reports the graphs' nodes. It fails when another profiler is attached.
std::string Cupti::enable() {
  {
    const std::lock_guard lock(Buffers::instance().mutex);
    if (Buffers::instance().taken) return "it is recording already";
    owner_ = Buffers::instance().taken = true;
  }
  const Library& l = *library_;
  const auto on_node = [](void* self, CUpti_CallbackDomain, CUpti_CallbackId what,
                          const void* data) {
    const auto* resource = static_cast<const CUpti_ResourceData*>(data);
    static_cast<Cupti*>(self)->note_node(what, resource->resourceDescriptor);
  };
  CUpti_SubscriberHandle subscriber = nullptr;
  CUptiResult result = l.subscribe(&subscriber, +on_node, this);
  if (result != CUPTI_SUCCESS) return cat("cuptiSubscribe: ", l.text(result));
  subscriber_ = subscriber;
  for (const auto callback : kNodeCallbacks) {
    if (result != CUPTI_SUCCESS) break;
    result = l.enable_callback(1, subscriber, CUPTI_CB_DOMAIN_RESOURCE, callback);
  }
  if (result == CUPTI_SUCCESS) result = l.register_timestamp(timestamp);
  if (result == CUPTI_SUCCESS) result = l.register_buffers(give_buffer, take_buffer);
  system_threads_ = l.thread_id_type(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM) == CUPTI_SUCCESS;
  enabled_ = true;  // also when only some kinds get enabled
  for (const CUpti_ActivityKind kind : kKinds) {
    if (result == CUPTI_SUCCESS) result = l.enable(kind);
  }
  return result == CUPTI_SUCCESS ? "" : cat("cuptiActivityEnable: ", l.text(result));
}

void Cupti::disable() noexcept {
  if (!owner_) return;
  if (enabled_) {
    for (const CUpti_ActivityKind kind : kKinds) library_->disable(kind);
    library_->flush(kForced);
  }
  enabled_ = false;
  if (subscriber_) library_->unsubscribe(static_cast<CUpti_SubscriberHandle>(subscriber_));
  subscriber_ = nullptr;
  Buffers& buffers = Buffers::instance();
  const std::lock_guard lock(buffers.mutex);
  for (const Buffer& buffer : buffers.filled) buffers.idle.push_back(buffer.data);
  buffers.filled.clear();
  owner_ = buffers.taken = false;
}

Cupti::~Cupti() {
  disable();
}

// Instantiating a captured graph clones its nodes; a clone gets its original's range.
void Cupti::note_node(uint32_t what, const void* graph_data) {
  const auto* graph = static_cast<const CUpti_GraphData*>(graph_data);
  uint64_t node = 0, original = 0;
  if (library_->node_id(graph->node, &node) != CUPTI_SUCCESS) return;
  if (what == CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED) {
    if (library_->node_id(graph->originalNode, &original) != CUPTI_SUCCESS) return;
    const auto known = node_ranges_.find(original);
    if (known == node_ranges_.end()) return;
    const int32_t range = known->second;
    node_ranges_[node] = range;
  } else {
    node_ranges_.emplace(node, open_range_());
  }
}

std::string Cupti::finish(Profile& profile) {
  const Library& l = *library_;
  l.flush(kForced);
  size_t dropped = 0;
  l.dropped(nullptr, 0, &dropped);
  const auto thread = static_cast<uint32_t>(syscall(SYS_gettid));
  Records records;
  const auto add = [&](const CUpti_Activity* at) {
    const bool runtime = at->kind == CUPTI_ACTIVITY_KIND_RUNTIME;
    if (!runtime && at->kind != CUPTI_ACTIVITY_KIND_DRIVER) return records.add_device(at);
    const auto& call = *reinterpret_cast<const CUpti_ActivityAPI*>(at);
    const char* name = nullptr;
    l.callback_name(runtime ? CUPTI_CB_DOMAIN_RUNTIME_API : CUPTI_CB_DOMAIN_DRIVER_API, call.cbid,
                    &name);
    records.add_call(call, name, system_threads_ && call.threadId != thread);
  };
  {
    const std::lock_guard lock(Buffers::instance().mutex);
    for (const Buffer& buffer : Buffers::instance().filled) {
      CUpti_Activity* at = nullptr;
      while (l.next_record(buffer.data, buffer.bytes, &at) == CUPTI_SUCCESS) add(at);
    }
  }
  disable();
  const int64_t unknown =
      attribute(profile, std::move(records.calls), std::move(records.events), node_ranges_);
  std::string note;
  dropped += records.untimed;
  if (dropped > 0) note = cat("CUPTI lost ", dropped, " records; ");
  if (unknown > 0) note += cat(unknown, " kernels or copies have no known launch; ");
  return note.substr(0, note.size() - std::min<size_t>(2, note.size()));
}

}  // namespace quern

#else  // a build without CUDA, or with a toolkit that has no CUPTI

namespace quern {

struct Cupti::Library {};

Cupti::Cupti(std::function<int32_t()>) {}
Cupti::~Cupti() = default;

std::unique_ptr<Cupti> Cupti::start(const std::string&, std::function<int32_t()>,
                                    std::string& reason) {
  reason = "this build has none";
  return nullptr;
}

std::string Cupti::finish(Profile&) {
  return "";
}

}  // namespace quern

#endif
