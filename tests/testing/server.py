"""`megatron serve` as a child process, and the requests that tests make of it."""
import http.client
import json
import os
import re
import signal
import subprocess

from program import MEGATRON

TEMPLATE = ("{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}")

# The same with tools, whose calls it writes as Hermes and Qwen do.
TOOL_TEMPLATE = ("{% if tools %}{{ tools | tojson + '\n' }}{% endif %}{% for message in messages %}"
                 "{{ message['role'] + ': ' + message['content'] }}{% for call in message['tool_calls'] %}"
                 "{{ '<tool_call>\n{\"name\": \"' + call['function']['name'] + '\", \"arguments\": ' }}"
                 "{{ call['function']['arguments'] | tojson + '}\n</tool_call>' }}{% endfor %}{{ '\n' }}{% endfor %}"
                 "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}")


class Server:
    """Serves `model` on a free port until close()."""

    def __init__(self, model, *options, env=None):
        self.process = subprocess.Popen([os.path.abspath(MEGATRON), "serve", model, "--port", "0", *map(str, options)],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **(env or {})})
        line = self.process.stdout.readline()
        match = re.search(r"http://([^:]+):(\d+)", line)
        if match is None:
            raise AssertionError(f"serve {model}: {line}{self.process.communicate()[1]}")
        self.host, self.port = match[1], int(match[2])

    def connection(self, timeout=120):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def raw(self, method, path, body=None, headers=None):
        """The response, its body read."""
        connection = self.connection()
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        response.text = response.read().decode()
        connection.close()
        return response

    def post(self, path, request, code=200, headers=None):
        response = self.raw("POST", path, json.dumps(request), {"Content-Type": "application/json", **(headers or {})})
        if response.status != code:
            raise AssertionError(f"{path} {request}: {response.status}, expected {code}\n{response.text}")
        return json.loads(response.text)

    def events(self, path, request):
        """The objects of a streamed response; fails where it does not end as it should."""
        response = self.raw("POST", path, json.dumps({**request, "stream": True}), {"Content-Type": "application/json"})
        assert response.status == 200, response.text
        assert response.headers["Content-Type"].startswith("text/event-stream"), response.headers
        *events, done, nothing = response.text.split("\n\n")
        assert (done, nothing) == ("data: [DONE]", ""), response.text
        return [json.loads(event.removeprefix("data: ")) for event in events]

    def metric(self, name):
        """The sum of a metric's values."""
        lines = self.raw("GET", "/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"{name}[ {{]", line))

    def wait_for(self, condition):
        """Asks again and again, as long as the server answers, until it holds."""
        for _ in range(20000):
            if condition():
                return
        raise AssertionError("it did not come about")

    def close(self, code=0):
        """Asks it to stop; returns what it said on stderr."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        errors = self.process.communicate(timeout=120)[1]
        if self.process.returncode != code:
            raise AssertionError(f"serve: exit code {self.process.returncode}, expected {code}\n{errors[-4000:]}")
        return errors
