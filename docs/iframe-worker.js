/* The search runs in a worker, and browsers start none for a page that was opened from a disk. There it runs in a hidden
   frame of the page instead, which gets and sends the same messages. The theme's own answer to that is a script of
   another host; a file that is called iframe-worker takes its place. */
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.early = []
      const frame = document.body.appendChild(document.createElement("iframe"))
      frame.hidden = true
      const inside = frame.contentDocument
      inside.open()
      frame.contentWindow.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inside.createElement("script")
      script.src = url
      script.onload = () => {
        this.send = data => frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
        this.early.forEach(this.send)
      }
      inside.appendChild(inside.createElement("html")).appendChild(script)
      inside.close()
    }

    postMessage(data) {
      this.send ? this.send(data) : this.early.push(data)
    }
  }
