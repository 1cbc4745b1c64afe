/*
 * A library with NVML's ABI whose GPUs are described by files: what monitors read of a GPU can be tested without one.
 *
 * PHOENIX_NVML_DIR names a directory with the three files that state.py writes or reads:
 *   state    the GPUs, one fixed record each; replaced as a whole, and read again when it was
 *   journal  events, one line each, appended: "id gpu type data gi ci"
 *   acks     what this library appends when it hands an event to a caller: "id pid monotonic_ns"
 *
 * Each event set begins at the journal's end and gets every event that it was registered for, as with NVML: one
 * subscriber never takes an event from another. Identity (index, UUID, PCI address, name) is answered from memory, as
 * the driver's cache does; everything else asks the GPU, and so fails where it is lost and waits where it is blocked.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define MOST_GPUS 32
#define LINKS 18
#define NAP_MS 10
#define SUPPORTED_EVENTS 0xBull /* single-bit ECC, double-bit ECC, Xid */

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15, RESET_REQUIRED = 16, UNKNOWN = 999
};

/* As state.py packs them: every field at its natural alignment, so there is no padding. */
struct header {
    uint32_t magic, version, gpus, cuda;
    char driver[80];
};
struct gpu {
    char uuid[96], name[96];
    uint32_t domain, bus, device, pci_id, pci_subsystem, capability;
    uint64_t memory_total, memory_used;
    uint32_t lost, recovery_action, block_ms, remap_corrected, remap_uncorrected, remap_pending, remap_failure, links_down;
    uint64_t ecc[2][2]; /* [0 corrected, 1 uncorrected][0 volatile, 1 aggregate] */
    uint64_t nvlink[4]; /* replay, recovery, CRC of flits, CRC of data */
};
_Static_assert(sizeof(struct header) == 96, "state.py packs 96 bytes");
_Static_assert(sizeof(struct gpu) == 328, "state.py packs 328 bytes");

struct pci_info {
    char legacy[16];
    uint32_t domain, bus, device, id, subsystem;
    char bus_id[32];
};
struct memory { uint64_t total, free, used; };
struct memory_v2 { uint32_t version; uint64_t total, reserved, free, used; };
struct event_data { void *device; uint64_t type, data; uint32_t gi, ci; };
struct field { uint32_t id, scope; int64_t at, latency; uint32_t type, result; uint64_t value; };
struct event_set { int journal, inotify; off_t offset; uint64_t types[MOST_GPUS]; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int users;
static char directory[3072];
static struct stat seen;
static struct { struct header header; struct gpu gpus[MOST_GPUS]; } state;
static char handles[MOST_GPUS]; /* a device is the address of its entry */

static void path_of(const char *name, char *path, size_t room) { snprintf(path, room, "%s/%s", directory, name); }

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static void nap(int ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000l};
    nanosleep(&time, NULL);
}

/* Reads the state again where it was replaced. The lock is held. */
static int refresh(void) {
    char path[4096];
    struct stat found;
    path_of("state", path, sizeof path);
    if (stat(path, &found) != 0) return UNKNOWN;
    if (found.st_ino == seen.st_ino && found.st_mtim.tv_nsec == seen.st_mtim.tv_nsec &&
        found.st_mtim.tv_sec == seen.st_mtim.tv_sec && found.st_ctim.tv_nsec == seen.st_ctim.tv_nsec)
        return OK;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return UNKNOWN;
    ssize_t size = read(file, &state, sizeof state);
    fstat(file, &seen);
    close(file);
    uint32_t gpus = state.header.gpus;
    int whole = size >= (ssize_t)sizeof state.header && state.header.magic == 0x4D564E50 && state.header.version == 1 &&
                gpus <= MOST_GPUS && size == (ssize_t)(sizeof state.header + gpus * sizeof(struct gpu));
    if (!whole) memset(&seen, 0, sizeof seen);
    return whole ? OK : UNKNOWN;
}

/* A copy of one GPU as it is now, whatever its condition. */
static int look(const void *device, struct gpu *gpu) {
    uintptr_t index = (uintptr_t)device - (uintptr_t)handles; /* huge for what is none of ours */
    pthread_mutex_lock(&lock);
    int result = users == 0 ? UNINITIALIZED : refresh();
    if (result == OK && index >= state.header.gpus) result = INVALID_ARGUMENT;
    if (result == OK) *gpu = state.gpus[index];
    pthread_mutex_unlock(&lock);
    return result;
}

/* The same for a call that asks the GPU itself: it waits for as long as the GPU is blocked, and fails where it is lost. */
static int ask(const void *device, struct gpu *gpu) {
    int64_t since = now_ns();
    for (;;) {
        int result = look(device, gpu);
        if (result != OK) return result;
        if (gpu->lost) return GPU_IS_LOST;
        if (gpu->block_ms == 0) return OK;
        if (now_ns() - since >= gpu->block_ms * 1000000ll) return UNKNOWN;
        nap(NAP_MS);
    }
}

static int copy_text(const char *from, char *to, uint32_t room) {
    if (to == NULL) return INVALID_ARGUMENT;
    if (strlen(from) >= room) return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return OK;
}

/* ---------------------------------------------------------------- the library, the system */

EXPORT int nvmlInitWithFlags(uint32_t flags) {
    (void)flags;
    const char *given = getenv("PHOENIX_NVML_DIR");
    if (given == NULL || strlen(given) >= sizeof directory) return DRIVER_NOT_LOADED;
    pthread_mutex_lock(&lock);
    strcpy(directory, given);
    int result = refresh() == OK ? OK : DRIVER_NOT_LOADED;
    if (result == OK) users++;
    pthread_mutex_unlock(&lock);
    return result;
}
EXPORT int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
EXPORT int nvmlInit(void) { return nvmlInitWithFlags(0); }

EXPORT int nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    int result = users > 0 ? OK : UNINITIALIZED;
    if (users > 0) users--;
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT const char *nvmlErrorString(int result) {
    switch (result) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case GPU_IS_LOST: return "GPU is lost";
    case RESET_REQUIRED: return "GPU requires reset";
    default: return "Unknown Error";
    }
}

static int system_header(struct header *header) {
    pthread_mutex_lock(&lock);
    int result = users == 0 ? UNINITIALIZED : refresh();
    *header = state.header;
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT int nvmlSystemGetDriverVersion(char *version, uint32_t room) {
    struct header header;
    int result = system_header(&header);
    return result == OK ? copy_text(header.driver, version, room) : result;
}
EXPORT int nvmlSystemGetNVMLVersion(char *version, uint32_t room) { return nvmlSystemGetDriverVersion(version, room); }
EXPORT int nvmlSystemGetCudaDriverVersion(int *version) {
    struct header header;
    int result = system_header(&header);
    if (result == OK) *version = (int)header.cuda;
    return result;
}
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

/* ---------------------------------------------------------------- which GPUs there are */

EXPORT int nvmlDeviceGetCount_v2(uint32_t *count) {
    struct header header;
    int result = system_header(&header);
    if (result == OK) *count = header.gpus;
    return result;
}
EXPORT int nvmlDeviceGetCount(uint32_t *count) { return nvmlDeviceGetCount_v2(count); }

/* A handle is refused where the GPU is lost, as the driver does. */
static int handle_of(uint32_t index, void **device) {
    struct gpu gpu;
    int result = look(handles + index, &gpu);
    if (result == OK) *device = handles + index;
    return result == OK && gpu.lost ? GPU_IS_LOST : result;
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(uint32_t index, void **device) {
    return index < MOST_GPUS ? handle_of(index, device) : INVALID_ARGUMENT;
}
EXPORT int nvmlDeviceGetHandleByIndex(uint32_t index, void **device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    struct gpu gpu;
    for (uint32_t index = 0; index < MOST_GPUS; index++) {
        int result = look(handles + index, &gpu);
        if (result != OK) return result == INVALID_ARGUMENT ? NOT_FOUND : result;
        if (strcmp(gpu.uuid, uuid) == 0) return handle_of(index, device);
    }
    return NOT_FOUND;
}
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **device) {
    uint32_t domain = 0, bus, slot, function;
    struct gpu gpu;
    if (sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
        domain = 0;
        if (sscanf(bus_id, "%x:%x.%x", &bus, &slot, &function) < 2) return INVALID_ARGUMENT;
    }
    for (uint32_t index = 0; index < MOST_GPUS; index++) {
        int result = look(handles + index, &gpu);
        if (result != OK) return result == INVALID_ARGUMENT ? NOT_FOUND : result;
        if (gpu.domain == domain && gpu.bus == bus && gpu.device == slot) return handle_of(index, device);
    }
    return NOT_FOUND;
}
EXPORT int nvmlDeviceGetHandleByPciBusId(const char *bus_id, void **device) {
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

EXPORT int nvmlDeviceGetIndex(const void *device, uint32_t *index) {
    struct gpu gpu;
    int result = look(device, &gpu);
    if (result == OK) *index = (uint32_t)((const char *)device - handles);
    return result;
}
EXPORT int nvmlDeviceGetMinorNumber(const void *device, uint32_t *minor) { return nvmlDeviceGetIndex(device, minor); }
EXPORT int nvmlDeviceGetUUID(const void *device, char *uuid, uint32_t room) {
    struct gpu gpu;
    int result = look(device, &gpu);
    return result == OK ? copy_text(gpu.uuid, uuid, room) : result;
}
EXPORT int nvmlDeviceGetName(const void *device, char *name, uint32_t room) {
    struct gpu gpu;
    int result = look(device, &gpu);
    return result == OK ? copy_text(gpu.name, name, room) : result;
}
EXPORT int nvmlDeviceGetPciInfo_v3(const void *device, struct pci_info *pci) {
    struct gpu gpu;
    int result = look(device, &gpu);
    if (result != OK) return result;
    memset(pci, 0, sizeof *pci);
    snprintf(pci->legacy, sizeof pci->legacy, "%04X:%02X:%02X.0", gpu.domain & 0xffff, gpu.bus & 0xff, gpu.device & 0xff);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0", gpu.domain, gpu.bus & 0xff, gpu.device & 0xff);
    pci->domain = gpu.domain, pci->bus = gpu.bus, pci->device = gpu.device;
    pci->id = gpu.pci_id, pci->subsystem = gpu.pci_subsystem;
    return OK;
}
EXPORT int nvmlDeviceGetPciInfo_v2(const void *device, struct pci_info *pci) { return nvmlDeviceGetPciInfo_v3(device, pci); }
EXPORT int nvmlDeviceGetPciInfo(const void *device, struct pci_info *pci) { return nvmlDeviceGetPciInfo_v3(device, pci); }
EXPORT int nvmlDeviceGetCudaComputeCapability(const void *device, int *major, int *minor) {
    struct gpu gpu;
    int result = look(device, &gpu);
    if (result == OK) *major = (int)gpu.capability / 10, *minor = (int)gpu.capability % 10;
    return result;
}

/* ---------------------------------------------------------------- memory and its errors */

EXPORT int nvmlDeviceGetMemoryInfo(const void *device, struct memory *memory) {
    struct gpu gpu;
    int result = ask(device, &gpu);
    if (result == OK) *memory = (struct memory){gpu.memory_total, gpu.memory_total - gpu.memory_used, gpu.memory_used};
    return result;
}
EXPORT int nvmlDeviceGetMemoryInfo_v2(const void *device, struct memory_v2 *memory) {
    struct gpu gpu;
    int result = ask(device, &gpu);
    if (result != OK) return result;
    memory->total = gpu.memory_total, memory->reserved = 0, memory->used = gpu.memory_used;
    memory->free = gpu.memory_total - gpu.memory_used;
    return OK;
}
EXPORT int nvmlDeviceGetEccMode(const void *device, uint32_t *current, uint32_t *pending) {
    struct gpu gpu;
    int result = ask(device, &gpu);
    if (result == OK) *current = *pending = 1;
    return result;
}
EXPORT int nvmlDeviceGetTotalEccErrors(const void *device, uint32_t severity, uint32_t period, uint64_t *count) {
    struct gpu gpu;
    if (severity > 1 || period > 1) return INVALID_ARGUMENT;
    int result = ask(device, &gpu);
    if (result == OK) *count = gpu.ecc[severity][period];
    return result;
}
EXPORT int nvmlDeviceGetMemoryErrorCounter(
    const void *device, uint32_t severity, uint32_t period, uint32_t place, uint64_t *count) {
    (void)place; /* all errors are counted at one place, the device's memory */
    return nvmlDeviceGetTotalEccErrors(device, severity, period, count);
}
EXPORT int nvmlDeviceGetRemappedRows(
    const void *device, uint32_t *corrected, uint32_t *uncorrected, uint32_t *pending, uint32_t *failure) {
    struct gpu gpu;
    int result = ask(device, &gpu);
    if (result != OK) return result;
    *corrected = gpu.remap_corrected, *uncorrected = gpu.remap_uncorrected;
    *pending = gpu.remap_pending, *failure = gpu.remap_failure;
    return OK;
}
EXPORT int nvmlDeviceGetRowRemapperHistogram(const void *device, uint32_t histogram[5]) {
    struct gpu gpu;
    int result = ask(device, &gpu);
    if (result != OK) return result;
    memset(histogram, 0, 5 * sizeof *histogram);
    histogram[gpu.remap_failure ? 4 : gpu.remap_uncorrected ? 1 : 0] = 640; /* banks with none, high or most rows left */
    return OK;
}
EXPORT int nvmlDeviceGetRetiredPages(const void *device, uint32_t cause, uint32_t *count, uint64_t *addresses) {
    struct gpu gpu;
    (void)cause, (void)addresses;
    int result = ask(device, &gpu);
    if (result == OK) *count = 0; /* rows are remapped since Ampere, pages no longer retired */
    return result;
}
EXPORT int nvmlDeviceGetRetiredPagesPendingStatus(const void *device, uint32_t *pending) {
    uint32_t count;
    *pending = 0;
    return nvmlDeviceGetRetiredPages(device, 0, &count, NULL);
}

/* ---------------------------------------------------------------- links */

EXPORT int nvmlDeviceGetNvLinkState(const void *device, uint32_t link, uint32_t *active) {
    struct gpu gpu;
    int result = link < LINKS ? ask(device, &gpu) : INVALID_ARGUMENT;
    if (result == OK) *active = !(gpu.links_down >> link & 1);
    return result;
}
EXPORT int nvmlDeviceGetNvLinkErrorCounter(const void *device, uint32_t link, uint32_t counter, uint64_t *count) {
    struct gpu gpu;
    int result = link < LINKS && counter < 5 ? ask(device, &gpu) : INVALID_ARGUMENT;
    if (result == OK) /* all errors are those of the first link; NVML counts 0 replays, 1 recoveries, 2, 3 CRC, 4 ECC */
        *count = link == 0 && counter < 4 ? gpu.nvlink[counter] : 0;
    return result;
}
EXPORT int nvmlDeviceGetNvLinkCapability(const void *device, uint32_t link, uint32_t capability, uint32_t *has) {
    (void)capability;
    *has = 0;
    uint32_t active;
    return nvmlDeviceGetNvLinkState(device, link, &active);
}
EXPORT int nvmlDeviceGetP2PStatus(const void *one, const void *other, uint32_t index, uint32_t *status) {
    struct gpu gpu;
    (void)index;
    int result = ask(one, &gpu);
    if (result == OK) result = ask(other, &gpu);
    if (result == OK) *status = 0;
    return result;
}
EXPORT int nvmlDeviceGetGpuFabricInfoV(const void *device, uint32_t *info) {
    struct gpu gpu;
    size_t size = *info & 0xffff; /* the version holds the structure's size; all of it zero: no fabric */
    int result = size >= 8 && size <= 64 ? ask(device, &gpu) : INVALID_ARGUMENT;
    if (result == OK) memset(info + 1, 0, size - sizeof *info);
    return result;
}

/* ---------------------------------------------------------------- what displays ask for: a healthy, idle GPU */

#define CONSTANT(name, number)                                  \
    EXPORT int name(const void *device, uint32_t *value) {      \
        struct gpu gpu;                                         \
        int result = ask(device, &gpu);                         \
        if (result == OK) *value = (number);                    \
        return result;                                          \
    }
CONSTANT(nvmlDeviceGetPowerUsage, 70000)
CONSTANT(nvmlDeviceGetEnforcedPowerLimit, 700000)
CONSTANT(nvmlDeviceGetPowerManagementLimit, 700000)
CONSTANT(nvmlDeviceGetPersistenceMode, 1)
CONSTANT(nvmlDeviceGetPerformanceState, 0)

EXPORT int nvmlDeviceGetFanSpeed(const void *device, uint32_t *speed) {
    (void)device, (void)speed;
    return NOT_SUPPORTED; /* it has no fan of its own */
}
EXPORT int nvmlDeviceGetTemperature(const void *device, uint32_t sensor, uint32_t *degrees) {
    struct gpu gpu;
    (void)sensor;
    int result = ask(device, &gpu);
    if (result == OK) *degrees = 35;
    return result;
}
EXPORT int nvmlDeviceGetUtilizationRates(const void *device, uint32_t rates[2]) {
    struct gpu gpu;
    int result = ask(device, &gpu);
    if (result == OK) rates[0] = rates[1] = 0;
    return result;
}
EXPORT int nvmlDeviceGetEncoderUtilization(const void *device, uint32_t *percent, uint32_t *period_us) {
    struct gpu gpu;
    int result = ask(device, &gpu);
    if (result == OK) *percent = 0, *period_us = 167000;
    return result;
}
EXPORT int nvmlDeviceGetDecoderUtilization(const void *device, uint32_t *percent, uint32_t *period_us) {
    return nvmlDeviceGetEncoderUtilization(device, percent, period_us);
}
EXPORT int nvmlDeviceGetMigMode(const void *device, uint32_t *current, uint32_t *pending) {
    struct gpu gpu;
    int result = ask(device, &gpu);
    if (result == OK) *current = *pending = 0;
    return result;
}

static int no_processes(const void *device, uint32_t *count) {
    struct gpu gpu;
    int result = ask(device, &gpu);
    if (result == OK) *count = 0;
    return result;
}
#define PROCESSES(name) \
    EXPORT int name(const void *device, uint32_t *count, void *found) { (void)found; return no_processes(device, count); }
PROCESSES(nvmlDeviceGetComputeRunningProcesses)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)

/* What some look for by name and can do without. */
#define ABSENT(name) EXPORT int name(void) { return NOT_SUPPORTED; }
ABSENT(nvmlDeviceGetNvLinkRemotePciInfo)
ABSENT(nvmlDeviceGetNvLinkRemotePciInfo_v2)

static int read_field(const struct gpu *gpu, struct field *field) {
    uint32_t number = 1, wide = 3; /* NVML's types: unsigned int, unsigned long long */
    field->type = number;
    switch (field->id) {
    case 3: field->type = wide, field->value = gpu->ecc[0][0]; return OK;
    case 4: field->type = wide, field->value = gpu->ecc[1][0]; return OK;
    case 5: field->type = wide, field->value = gpu->ecc[0][1]; return OK;
    case 6: field->type = wide, field->value = gpu->ecc[1][1]; return OK;
    case 94: field->value = 0; return OK; /* PCIe replays */
    case 142: field->value = gpu->remap_corrected; return OK;
    case 143: field->value = gpu->remap_uncorrected; return OK;
    case 144: field->value = gpu->remap_pending; return OK;
    case 145: field->value = gpu->remap_failure; return OK;
    case 161: field->type = wide, field->value = gpu->nvlink[0]; return OK;
    case 162: field->type = wide, field->value = gpu->nvlink[1]; return OK;
    case 163: field->type = wide, field->value = gpu->nvlink[2]; return OK;
    case 226: field->value = gpu->recovery_action == 1; return OK;
    case 227: field->value = gpu->recovery_action == 4; return OK;
    case 230: field->value = gpu->recovery_action; return OK;
    default: return NOT_SUPPORTED;
    }
}
EXPORT int nvmlDeviceGetFieldValues(const void *device, int count, struct field *fields) {
    struct gpu gpu;
    int result = ask(device, &gpu);
    for (int index = 0; result == OK && index < count; index++) {
        fields[index].value = 0, fields[index].latency = 0, fields[index].at = now_ns() / 1000;
        fields[index].result = (uint32_t)read_field(&gpu, &fields[index]);
    }
    return result;
}

/* ---------------------------------------------------------------- events */

EXPORT int nvmlDeviceGetSupportedEventTypes(const void *device, uint64_t *types) {
    struct gpu gpu;
    int result = look(device, &gpu);
    if (result == OK) *types = SUPPORTED_EVENTS;
    return result;
}

EXPORT int nvmlEventSetCreate(struct event_set **made) {
    char path[4096];
    struct header header;
    int result = system_header(&header);
    if (result != OK) return result;
    struct event_set *set = calloc(1, sizeof *set);
    if (set == NULL) return UNKNOWN;
    path_of("journal", path, sizeof path);
    set->journal = open(path, O_RDONLY | O_CLOEXEC);
    if (set->journal < 0) {
        free(set);
        return UNKNOWN;
    }
    set->inotify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (set->inotify >= 0 && inotify_add_watch(set->inotify, path, IN_MODIFY) < 0) {
        close(set->inotify);
        set->inotify = -1; /* the kernel's limits: the journal is looked at every few milliseconds instead */
    }
    set->offset = lseek(set->journal, 0, SEEK_END);
    *made = set;
    return OK;
}

EXPORT int nvmlDeviceRegisterEvents(const void *device, uint64_t types, struct event_set *set) {
    struct gpu gpu;
    int result = look(device, &gpu);
    if (result != OK) return result;
    if (gpu.lost) return GPU_IS_LOST;
    if (types & ~SUPPORTED_EVENTS) return NOT_SUPPORTED;
    set->types[(const char *)device - handles] |= types;
    return OK;
}

/* Says of an event that it was handed over, by whom and when: one write, so that two processes never mix. */
static void acknowledge(uint64_t id) {
    char path[4096], line[80];
    path_of("acks", path, sizeof path);
    int file = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (file < 0) return;
    int size = snprintf(line, sizeof line, "%llu %d %lld\n", (unsigned long long)id, getpid(), (long long)now_ns());
    if (write(file, line, (size_t)size) < 0) errno = 0; /* nobody will count it: the caller's event is no worse */
    close(file);
}

/* The next event of the journal that the set is registered for; TIMEOUT where there is none yet. */
static int next_event(struct event_set *set, struct event_data *event) {
    char line[161];
    for (;;) {
        ssize_t size = pread(set->journal, line, sizeof line - 1, set->offset);
        line[size > 0 ? size : 0] = 0;
        char *end = strchr(line, '\n');
        if (end == NULL) return TIMEOUT;
        set->offset += end - line + 1;
        unsigned long long id, type, data;
        unsigned gpu, gi, ci;
        if (sscanf(line, "%llu %u %llu %llu %u %u", &id, &gpu, &type, &data, &gi, &ci) != 6) continue;
        if (gpu >= MOST_GPUS || !(set->types[gpu] & type)) continue;
        *event = (struct event_data){handles + gpu, type, data, gi, ci};
        acknowledge(id);
        return OK;
    }
}

EXPORT int nvmlEventSetWait_v2(struct event_set *set, struct event_data *event, uint32_t timeout_ms) {
    int64_t until = now_ns() + timeout_ms * 1000000ll;
    for (;;) {
        char told[4096];
        while (set->inotify >= 0 && read(set->inotify, told, sizeof told) > 0) continue;
        int result = next_event(set, event);
        int64_t left_ms = (until - now_ns() + 999999) / 1000000;
        if (result == OK || left_ms <= 0) return result;
        struct pollfd wait = {set->inotify, POLLIN, 0};
        if (set->inotify < 0) nap(left_ms < NAP_MS ? (int)left_ms : NAP_MS);
        else if (poll(&wait, 1, left_ms > 60000 ? 60000 : (int)left_ms) < 0 && errno != EINTR) return UNKNOWN;
    }
}
EXPORT int nvmlEventSetWait(struct event_set *set, struct event_data *event, uint32_t timeout_ms) {
    return nvmlEventSetWait_v2(set, event, timeout_ms);
}

EXPORT int nvmlEventSetFree(struct event_set *set) {
    if (set->inotify >= 0) close(set->inotify);
    close(set->journal);
    free(set);
    return OK;
}
